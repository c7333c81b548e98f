"""The text of a data set in three parts, piece by piece, from any place on."""

import hashlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from nala_platform.data.base import Part
from nala_platform.data.cache import digest, key
from nala_platform.data.language.bad_rows import BadRows
from nala_platform.data.language.text_files import PIECE, Piece, Reader, Reading, read_pieces, whole
from nala_platform.data.problems import BadFileError, Excluded, Problem, report
from nala_platform.errors import UserError
from nala_platform.paths import shown

PARTS: tuple[Part, ...] = ("train", "val", "test")
LARGE = 1 << 30  # bytes of all files together, from which on files over `SMALL` bytes are known by a few blocks
SMALL, BLOCK, BLOCKS = 1 << 16, 1 << 14, 4


class Texts(NamedTuple):
    """The text files of a data set, as a layout has found them.

    Attributes:
        files: of each part, in the order in which they are read. Where parts are held out, all are of ``train``.
        reader: of one file.
        held_out: what validation and test are taken from ``train`` by, in a share of ``share`` each; ``no``: files of
            their own. ``pieces``: of all distinct pieces (see `read_pieces`), those with the least hashes, and one at
            least. ``documents``: those whose first piece has a hash in the first share of all hashes, for validation,
            or in the second, for test; so a document's part depends on nothing else, and equal ones are of one part.
        share: of each.
        passed_over: text files that belong to no part.
        meaning: what else is to be known about a score on it.
        words: whether the field counts its perplexity by words.
    """

    files: dict[Part, list[Path]]
    reader: Reader = read_pieces
    held_out: Literal["no", "pieces", "documents"] = "no"
    share: float = 0.0
    passed_over: tuple[Path, ...] = ()
    meaning: str = ""
    words: bool = False


TextLayout = Callable[[Path, Excluded], Texts]


class Place(NamedTuple):
    """Behind so many pieces of the file with this number, counted over all parts."""

    file: int = 0
    pieces: int = 0


class Corpus:
    """The documents of a data set. Neighbouring pieces of a document that are of one part stay one document.

    Args:
        root: the file or folder.
        texts: what a layout has found there.
        column: of the text, in JSON lines and parquet.
        bad_rows: how many rows that are no text may be left out.

    Attributes:
        reading: how far it has been read.

    Raises:
        UserError: a part that is needed has no file.
    """

    def __init__(self, root: Path, texts: Texts, *, column: str = "text", bad_rows: int = 0) -> None:
        self.root, self.texts, self.column, self.bad_rows = root, texts, column, bad_rows
        for part in ("train", "val") if texts.held_out == "no" else ("train",):
            if not texts.files.get(part):
                listed = ", ".join(p for p in PARTS if texts.files.get(p)) or "no part"
                raise UserError(
                    f"data.root: {root} has files for {listed}, but none for {part}: name one {part}.txt or "
                    f"{part}*.jsonl, or put it in a folder {part}"
                )
        self.reading = Reading(column)
        self._key: str | None = None
        self._bounds: tuple[int, int] | None = None

    def key(self) -> str:
        """A name for the content: of the files' names and digests, the column, the rules of reading and splitting."""
        if self._key is None:
            large = self.size() > LARGE
            files = [[part, self.name(path), _digest(path, large)] for part, path in self._paths()]
            reader = getattr(self.texts.reader, "__qualname__", repr(self.texts.reader))
            rules = {"hold_out": self.texts.held_out, "share": self.texts.share, "reader": reader, "piece": PIECE}
            self._key = key(files=files, column=self.column, **rules)
        return self._key

    def size(self) -> int:
        """Bytes of all files."""
        return sum(_size(path) for _, path in self._paths())

    def end(self) -> Place:
        """Behind all files."""
        return Place(len(self._paths()))

    def pieces(self) -> Iterator[tuple[Part, Piece]]:
        """All pieces, each with its part; ``first`` holds within the part."""
        return ((part, piece) for part, piece, _ in self.behind(Place(), BadRows(self.bad_rows)))

    def behind(self, start: Place, bad: BadRows) -> Iterator[tuple[Part, Piece, Place]]:
        """The pieces behind a place, each with its part and the place behind it.

        Args:
            start: whose file is read again from its beginning, to find the place.
            bad: told of the rows that are no text, from the place on.
        """
        self.reading.position = 0
        for number, (part, path) in enumerate(self._paths()):
            if number < start.file:
                self.reading.position += _size(path)
                continue
            skipped = start.pieces if number == start.file else 0
            for count, (mine, piece) in enumerate(self._read(part, path, bad, skipped), 1):
                if count > skipped:
                    yield mine, piece, Place(number, count)

    def protocol(self) -> dict[str, Any]:
        """Source and split, as plain values."""
        share = f"{100 * self.texts.share:.4g} %"
        split = {
            "no": "by the names of files and folders",
            "pieces": f"pieces of up to {PIECE} characters by a hash: {share} validation, {share} test",
            "documents": f"documents by a hash of their first {PIECE} characters: {share} validation, {share} test",
        }
        return {
            "root": shown(self.root),
            "content": self.key(),
            "files": {part: len(paths) for part, paths in self.texts.files.items()},
            "files passed over": [self.name(path) for path in self.texts.passed_over],
            "split": split[self.texts.held_out],
            "test split": "test" if self.has_test else "val (there is no test file)",
            **({"meaning": self.texts.meaning} if self.texts.meaning else {}),
        }

    @property
    def has_test(self) -> bool:
        """Whether the test part is one of its own."""
        return self.texts.held_out != "no" or bool(self.texts.files.get("test"))

    def name(self, path: Path) -> str:
        """A file's, within the root."""
        return path.name if path == self.root else path.relative_to(self.root).as_posix()

    def _paths(self) -> list[tuple[Part, Path]]:
        return [(part, path) for part, paths in self.texts.files.items() for path in paths]

    def _read(self, part: Part, path: Path, bad: BadRows, skipped: int) -> Iterator[tuple[Part, Piece]]:
        """A file's pieces with their parts; bad rows are told behind the first ``skipped`` pieces."""
        mine: Part | None = None
        done, begun = 0, self.reading.position

        def told(problem: Problem) -> None:
            if done >= skipped:
                bad.add(problem)

        self.reading.bad = told
        for piece in whole(path, self.reading, self.texts.reader):
            before, mine = mine, self._part_of(piece, part, mine)
            yield mine, piece._replace(first=piece.first or mine != before)
            done += 1
        self.reading.position = begun + _size(path)

    def _part_of(self, piece: Piece, part: Part, before: Part | None) -> Part:
        if self.texts.held_out == "no" or (self.texts.held_out == "documents" and not piece.first and before):
            return before or part
        low, high = self._found_bounds()
        place = _hash(piece.text)
        return "val" if place < low else "test" if place < high else "train"

    def _found_bounds(self) -> tuple[int, int]:
        if self._bounds is None:
            share = round(self.texts.share * 2**64)
            self._bounds = (share, 2 * share) if self.texts.held_out == "documents" else self._least()
        return self._bounds

    def _least(self) -> tuple[int, int]:
        """The hashes at which the least ones end, and the next; 8 bytes a piece are in memory."""
        reading = Reading(self.column, BadRows(self.bad_rows).add)
        read = chain.from_iterable(whole(path, reading, self.texts.reader) for path in self.texts.files["train"])
        hashes = np.unique(np.fromiter((_hash(piece.text) for piece in read if piece.text), dtype=np.uint64))
        count = max(1, min(round(self.texts.share * len(hashes)), (len(hashes) - 1) // 2))
        if len(hashes) < 3:
            raise UserError(
                f"data.root: {self.root} has {'no text' if not len(hashes) else 'too little text'} to be split into "
                f"three (pieces of {PIECE} characters: {len(hashes)}): give more, or files train.txt, val.txt, test.txt"
            )
        return int(hashes[count]), int(hashes[2 * count])


def _digest(path: Path, large: bool) -> str:
    try:
        return digest(path, whole=SMALL, block=BLOCK, blocks=BLOCKS) if large else digest(path)
    except OSError as error:
        text = f"cannot be read: {error.strerror}; let it be read or take it out"
        raise BadFileError(Problem("unreadable", path, text)) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        report([Problem("unreadable", path, f"cannot be read: {error.strerror}; let it be read or take it out")])
        return 0


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
