"""Which split an archive of samples belongs to, by its name: shards and parquet files."""

import re
from pathlib import Path

from nala_platform.data.files import files_under
from nala_platform.errors import UserError

SPLITS = {"train": "train", "val": "val", "validation": "val", "valid": "val", "test": "test"}


def split_files(root: Path, suffix: str) -> dict[str, list[Path]]:
    """The files below ``root``, sorted, by the split whose word is in a name: ``imagenet1k-validation-00.tar``.

    The file's name decides, then the name of its folder, and so on up to ``root``. Words are runs of letters, so that
    ``training-set`` is none.

    Raises:
        UserError: there is no such file, none for training, or one that belongs to no split or to two.
    """
    found: dict[str, list[Path]] = {}
    for path in files_under(root, (suffix,)):
        split = _split(path.relative_to(root))
        if split is None:
            raise UserError(
                f"data.root: {path} belongs to no split, or to two: its name, or its folder's, must have one of the "
                f"words {', '.join(SPLITS)}"
            )
        found.setdefault(split, []).append(path)
    if "train" not in found:
        there = ", ".join(found) or f"no {suffix} files"
        raise UserError(
            f"data.root: {root} has no {suffix} file of train (there: {there}), such as train-00000{suffix}"
        )
    if not {"val", "test"} & {*found}:
        raise UserError(f"data.root: {root} has {suffix} files for train alone: put those of val or test there too")
    return {split: found[split] for split in ("train", "val", "test") if split in found}


def _split(path: Path) -> str | None:
    for name in reversed(path.with_suffix("").parts):
        words = {SPLITS[word] for word in re.findall("[a-z]+", name.lower()) if word in SPLITS}
        if words:
            return words.pop() if len(words) == 1 else None
    return None
