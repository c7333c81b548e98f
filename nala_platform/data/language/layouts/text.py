"""The layouts of text for language modelling, by name."""

import re
from pathlib import Path

from nala_platform.data.base import Part
from nala_platform.data.files import files_under
from nala_platform.data.language.corpus import PARTS, TextLayout, Texts
from nala_platform.data.language.layouts.published import fineweb, slimpajama
from nala_platform.data.language.layouts.wikitext import wikitext, wikitext_parquet, wikitext_raw, wikitext_tokens
from nala_platform.data.language.text_files import READERS
from nala_platform.data.problems import Excluded
from nala_platform.errors import UserError

SHARE = 0.05  # of the pieces, for validation and for test each, where a hash splits
_NAMES: dict[Part, re.Pattern[str]] = {
    "train": re.compile(r"train(ing)?(?![a-z])"),
    "val": re.compile(r"(val(id|idation)?|dev)(?![a-z])"),
    "test": re.compile(r"test(ing)?(?![a-z])"),
}


def text_files(root: Path, excluded: Excluded) -> Texts:
    """A text file, or all text files below a folder (`READERS`).

    A file belongs to the part that its name, or a folder's above it within ``root``, begins with: ``train``, ``val``
    (``valid``, ``validation``, ``dev``), ``test``; so ``train-00001.jsonl``, ``val.txt``, ``test/a.txt``. Other files
    are passed over then. Without any for ``test``, the validation part is the test part too.

    Where ``root`` is a file, or none of its files is of ``val`` or ``test``, a hash of the pieces splits, 5 % for
    validation and 5 % for test.

    Raises:
        UserError: nothing there.
    """
    suffixes = tuple(READERS)
    if not root.exists():
        raise UserError(f"data.root: {root} does not exist: give a text file or a folder of them")
    found = files_under(root, suffixes) if root.is_dir() else [root]
    if not found or not (root.is_dir() or root.name.lower().endswith(suffixes)):
        what = "holds no text file" if root.is_dir() else "is no text file by its name"
        raise UserError(f"data.root: {root} {what} ({' '.join(suffixes)})")
    found = [path for path in found if path not in excluded]
    files: dict[Part, list[Path]] = {
        part: [path for path in found if part_of(path.relative_to(root)) == part] for part in PARTS
    }
    if not (files["val"] or files["test"]):
        files = {"train": files["train"] or found}
        over = tuple(path for path in found if path not in set(files["train"]))
        return Texts(files, held_out="pieces", share=SHARE, passed_over=over)
    used = {path for paths in files.values() for path in paths}
    return Texts(files, passed_over=tuple(path for path in found if path not in used))


def part_of(name: Path) -> Part | None:
    """The part that a path within a root tells, by the first of its steps that does."""
    for step in name.parts:
        for part, pattern in _NAMES.items():
            if pattern.match(step.lower()):
                return part
    return None


LAYOUTS: dict[str, TextLayout] = {
    "text_files": text_files,
    "wikitext": wikitext,
    "wikitext_raw": wikitext_raw,
    "wikitext_tokens": wikitext_tokens,
    "wikitext_parquet": wikitext_parquet,
    "slimpajama": slimpajama,
    "fineweb": fineweb,
}
