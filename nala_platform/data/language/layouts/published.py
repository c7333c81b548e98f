"""Large collections of web text, as their publishers lay them out."""

from collections.abc import Iterator
from pathlib import Path

from nala_platform.data.base import Part
from nala_platform.data.files import files_under
from nala_platform.data.language.corpus import Texts
from nala_platform.data.language.text_files import Piece, Reading, json_lines
from nala_platform.data.problems import Excluded
from nala_platform.errors import UserError

HELD_OUT = 0.001  # of FineWeb's documents, for validation and for test each
SLIMPAJAMA: dict[Part, str] = {"train": "train", "val": "validation", "test": "test"}
SET_NAME = ("meta", "redpajama_set_name")


def slimpajama(root: Path, excluded: Excluded) -> Texts:
    """SlimPajama-627B: ``{train,validation,test}/chunk1/example_train_0.jsonl.zst``.

    Some of the chunks are enough. The protocol counts the documents of each source by ``meta.redpajama_set_name``.

    Raises:
        UserError: no file of a part.
    """
    suffixes = (".jsonl.zst", ".jsonl")
    files: dict[Part, list[Path]] = {part: _below(root / name, suffixes, excluded) for part, name in SLIMPAJAMA.items()}
    for part, name in SLIMPAJAMA.items():
        if not files[part] and part != "test":
            raise UserError(
                f"data.root: {root} has no {name}/chunk*/*.jsonl.zst: SlimPajama has folders train, validation and "
                "test, with folders chunk1, chunk2, … in them, of which some are enough"
            )
    return Texts(files, reader=read_slimpajama, meaning="deduplicated by its publishers, over all parts")


def read_slimpajama(path: Path, reading: Reading) -> Iterator[Piece]:
    """A document in each line, its group the source that it is from."""
    return json_lines(path, reading, group=SET_NAME)


def fineweb(root: Path, excluded: Excluded) -> Texts:
    """FineWeb and FineWeb-Edu: ``data/CC-MAIN-…/000_00000.parquet`` or ``sample/10BT/000_00000.parquet``.

    There is no validation or test part: documents are held out by a hash of their beginning, so the same ones whichever
    files are there. ``root`` may be the whole folder, or a folder in it.

    Raises:
        UserError: no parquet file, or several samples, which hold the same documents.
    """
    found = _below(root, (".parquet",), excluded)
    if not found:
        raise UserError(f"data.root: {root} holds no parquet file: give FineWeb's folder, or sample/10BT in it")
    inside = [path.relative_to(root).parts for path in found]
    sets = {"/".join(steps[:2]) if steps[0] == "sample" else steps[0] for steps in inside if len(steps) > 1}
    samples = sorted(name for name in sets if name.startswith("sample/") or name.endswith("BT"))
    if samples and len(sets) > 1:
        listed = ", ".join(sorted(sets))
        raise UserError(
            f"data.root: {root} holds {listed}, and a sample's documents are in larger ones too: give one of them, as "
            f"--data.root {root / samples[0]}"
        )
    meaning = "no part of the publishers' own is held out, so scores compare only with the same share and rule"
    return Texts({"train": found}, held_out="documents", share=HELD_OUT, meaning=meaning)


def _below(folder: Path, suffixes: tuple[str, ...], excluded: Excluded) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in files_under(folder, suffixes) if path not in excluded]
