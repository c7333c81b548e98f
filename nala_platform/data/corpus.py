"""Which text belongs to which part: by the names of files and folders, or by a hash."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nala_platform.data.pictures import files_under
from nala_platform.data.samples import Part
from nala_platform.data.text_files import PIECE, READERS, Piece, read_pieces
from nala_platform.data.token_cache import digest, key
from nala_platform.errors import UserError

PARTS: tuple[Part, ...] = ("train", "val", "test")
SHARE = 0.05  # of the pieces, for validation and for test each, where a hash splits
_NAMES: dict[Part, re.Pattern[str]] = {
    "train": re.compile(r"train(ing)?(?![a-z])"),
    "val": re.compile(r"(val(id|idation)?|dev)(?![a-z])"),
    "test": re.compile(r"test(ing)?(?![a-z])"),
}


class Corpus:
    """The documents of a text file, or of all text files below a folder, in three parts.

    A file belongs to the part that its name, or a folder's above it within ``root``, begins with: ``train``, ``val``
    (``valid``, ``validation``, ``dev``), ``test``; so ``train-00001.jsonl``, ``val.txt``, ``test/a.txt``. Other files
    are passed over then. Without any for ``test``, the validation part is the test part too.

    Where ``root`` is a file, or none of its files is of ``val`` or ``test``, a hash splits: of all distinct pieces (see
    `read_pieces`), the 5 % with the least hashes, and one at least, are for validation, the next 5 % for test. Equal
    pieces are of one part. Neighbouring pieces of a document that are of one part stay one document.

    Args:
        root: the file or folder.
        column: of the text, in JSON lines and parquet.

    Attributes:
        files: of each part, in the order of their names; of ``train`` alone where a hash splits.
        hashed: whether a hash splits.
        passed_over: text files that belong to no part.

    Raises:
        UserError: nothing there, or no part to train on or to validate on.
    """

    def __init__(self, root: Path, column: str) -> None:
        self.root, self.column = root, column
        found = _text_files(root)
        self.files: dict[Part, list[Path]] = {
            part: [path for path in found if _part(path.relative_to(root)) == part] for part in PARTS
        }
        self.hashed = not (self.files["val"] or self.files["test"])
        if self.hashed:
            self.files = {"train": self.files["train"] or found}
        for part in () if self.hashed else ("train", "val"):
            if not self.files[part]:
                raise UserError(
                    f"data.root: {root} has files for {', '.join(p for p in PARTS if self.files[p])}, but none for "
                    f"{part}: name one {part}.txt or {part}*.jsonl, or put it in a folder {part}"
                )
        used = {path for files in self.files.values() for path in files}
        self.passed_over = [path for path in found if path not in used]
        self._key: str | None = None
        self._bounds: tuple[int, int] | None = None

    def key(self) -> str:
        """A name for the content: of the files' names and `digest` values, the column, the rules of the split."""
        if self._key is None:
            files = [[part, self._name(path), _digest(path)] for part, paths in self.files.items() for path in paths]
            self._key = key(files=files, column=self.column, hashed=self.hashed, share=SHARE, piece=PIECE)
        return self._key

    def pieces(self) -> Iterator[tuple[Part, Piece]]:
        """All pieces, each with its part; ``first`` holds within the part."""
        last: Part | None = None
        for part, paths in self.files.items():
            for path in paths:
                for piece in read_pieces(path, self.column):
                    mine = self._part_of(piece.text) if self.hashed else part
                    yield mine, Piece(piece.text, piece.first or mine != last)
                    last = mine

    def protocol(self) -> dict[str, Any]:
        """Source and split, as plain values."""
        split = (
            f"pieces of up to {PIECE} characters by a hash: {SHARE:.0%} validation, {SHARE:.0%} test"
            if self.hashed
            else "by the names of files and folders"
        )
        return {
            "root": str(self.root),
            "content": self.key(),
            "files": {part: len(paths) for part, paths in self.files.items()},
            "files passed over": [self._name(path) for path in self.passed_over],
            "split": split,
            "test split": "test" if self.has_test else "val (there is no test file)",
        }

    @property
    def has_test(self) -> bool:
        """Whether the test part is one of its own."""
        return self.hashed or bool(self.files["test"])

    def _name(self, path: Path) -> str:
        return path.name if path == self.root else path.relative_to(self.root).as_posix()

    def _part_of(self, text: str) -> Part:
        if self._bounds is None:
            self._bounds = self._find_bounds()
        place = _hash(text)
        return "val" if place < self._bounds[0] else "test" if place < self._bounds[1] else "train"

    def _find_bounds(self) -> tuple[int, int]:
        texts = (piece.text for path in self.files["train"] for piece in read_pieces(path, self.column))
        hashes = np.unique(np.fromiter((_hash(text) for text in texts if text), dtype=np.uint64))
        count = max(1, round(SHARE * len(hashes)))
        if len(hashes) < 3:
            raise UserError(
                f"data.root: {self.root} has {'no text' if not len(hashes) else 'too little text'} to be split into "
                f"three (pieces of {PIECE} characters: {len(hashes)}): give more, or files train.txt, val.txt, test.txt"
            )
        return int(hashes[count]), int(hashes[2 * count])


def _text_files(root: Path) -> list[Path]:
    suffixes = tuple(READERS)
    if not root.exists():
        raise UserError(f"data.root: {root} does not exist: give a text file or a folder of them")
    found = files_under(root, suffixes) if root.is_dir() else [root]
    if not found or not (root.is_dir() or root.name.lower().endswith(suffixes)):
        what = "holds no text file" if root.is_dir() else "is no text file by its name"
        raise UserError(f"data.root: {root} {what} ({' '.join(suffixes)})")
    return found


def _part(name: Path) -> Part | None:
    for step in name.parts:
        for part, pattern in _NAMES.items():
            if pattern.match(step.lower()):
                return part
    return None


def _digest(path: Path) -> str:
    try:
        return digest(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; let it be read or take it out") from error


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
