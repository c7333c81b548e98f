"""Text to tokens on disk, a stretch at a time: a process that is killed leaves what the next one goes on with.

Shapes: N tokens of a piece.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from nala_platform.data.base import Part
from nala_platform.data.language.bad_rows import BadRows
from nala_platform.data.language.corpus import PARTS, Place
from nala_platform.data.language.text_files import Piece
from nala_platform.data.problems import Problem

JOURNAL = "journal.json"
WIDTH = np.dtype("<u2")  # a piece of 4096 characters has at most 16384 bytes
COUNTED = ("documents", "empty", "tokens", "bytes", "words", "lines")


class PartWriter:
    """Writes one stream: eos, then documents, each ended by eos.

    Args:
        folder: where.
        part: which.
        eos: the token.
        kind: numpy's name for the type of a token.

    Attributes:
        facts: of the part, see `nala_platform.data.language.token_store.TokenStore`; its ``groups`` count documents.
    """

    def __init__(self, folder: Path, part: Part, eos: int, kind: str) -> None:
        self._kind, self._eos = np.dtype(kind), np.array([eos])
        self._paths = [folder / f"{part}.{name}" for name in ("tokens", "bytes")]
        self.facts: dict[str, Any] = {**dict.fromkeys(COUNTED, 0), "groups": {}}
        self._in_word = False
        self._files: list[IO[bytes]] = []

    def open(self, state: dict[str, Any] | None) -> None:
        """Begin, or go on where ``state`` was taken.

        Raises:
            ValueError: the files hold less than it says.
        """
        sizes = [0, 0] if state is None else state["sizes"]
        if state is not None:
            self.facts, self._in_word = state["facts"], state["in_word"]
        for path, size in zip(self._paths, sizes, strict=True):
            path.touch()
            if path.stat().st_size < size:
                raise ValueError(f"{path.name} is shorter than it was")
            os.truncate(path, size)
        self._files = [path.open("ab") for path in self._paths]

    def add(self, piece: Piece, token_N: np.ndarray, bytes_N: np.ndarray) -> None:
        """Append a piece."""
        if not piece.text:
            self.facts["empty"] += 1
            return
        if piece.first:
            self.facts["documents"] += 1
            self._in_word = False
            if piece.group:
                self.facts["groups"][piece.group] = self.facts["groups"].get(piece.group, 0) + 1
            self._write(self._eos, np.zeros(1))
        # a word that a piece ends in goes on in the next one
        self.facts["words"] += len(piece.text.split()) - (self._in_word and not piece.text[0].isspace())
        self._in_word = not piece.text[-1].isspace()
        self.facts["lines"] += piece.text.count("\n")
        self._write(token_N, bytes_N)

    def finish(self) -> dict[str, Any]:
        """End the last document; how much there is."""
        self._write(self._eos, np.zeros(1))
        return self.facts | {"tokens": self.facts["tokens"] - 1}

    def state(self) -> dict[str, Any]:
        """What `open` goes on from; all before it is on the disk."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
        sizes = [file.tell() for file in self._files]
        return {"sizes": sizes, "facts": self.facts, "in_word": self._in_word}

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files:
            file.close()

    def written(self) -> int:
        """Bytes so far."""
        return self.facts["tokens"] * (self._kind.itemsize + WIDTH.itemsize)

    def _write(self, token_N: np.ndarray, bytes_N: np.ndarray) -> None:
        for file, values, kind in zip(self._files, (token_N, bytes_N), (self._kind, WIDTH), strict=True):
            file.write(values.astype(kind).tobytes())
        self.facts["tokens"] += len(token_N)
        self.facts["bytes"] += int(bytes_N.sum())


class Begun(NamedTuple):
    """Files that are being written, and the place behind what is in them."""

    writers: dict[Part, PartWriter]
    place: Place


@contextmanager
def begun(folder: Path, root: Path, eos: int, kind: str, bad: BadRows) -> Iterator[Begun]:
    """The writers of all parts, empty or where the folder's journal says that they were; closed at the end.

    Args:
        folder: where.
        root: of the text.
        eos: the token that ends documents.
        kind: numpy's name for the type of a token.
        bad: is given the bad rows that were met before.
    """
    writers: dict[Part, PartWriter] = {part: PartWriter(folder, part, eos, kind) for part in PARTS}
    try:
        try:
            state = json.loads((folder / JOURNAL).read_text(encoding="utf-8"))
            for part, writer in writers.items():
                writer.open(state["parts"][part])
            place = Place(*state["place"])
            bad.count, bad.problems = state["bad"]["count"], problems(state["bad"], root)
        except (OSError, ValueError, KeyError, TypeError):  # there is none, or it is damaged
            for writer in writers.values():
                writer.close()
            writers = {part: PartWriter(folder, part, eos, kind) for part in PARTS}
            for writer in writers.values():
                writer.open(None)
            place = Place()
        yield Begun(writers, place)
    finally:
        for writer in writers.values():
            writer.close()


def note(folder: Path, writers: dict[Part, PartWriter], place: Place, bad: dict[str, Any]) -> None:
    """Write down how far it has come, and the bad rows that `told` tells; whole or not at all."""
    parts = {part: writer.state() for part, writer in writers.items()}
    state = {"parts": parts, "place": list(place), "bad": bad}
    temporary = folder / f"{JOURNAL}.new"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / JOURNAL)


def told(bad: BadRows, root: Path) -> dict[str, Any]:
    """Bad rows as plain values, their files as names within the root."""
    rows = [[kind, path.relative_to(root).as_posix(), text] for kind, path, text in bad.problems]
    return {"count": bad.count, "problems": rows}


def problems(bad: dict[str, Any], root: Path) -> list[Problem]:
    """The problems that `told` has written."""
    return [Problem(kind, root / path, text) for kind, path, text in bad["problems"]]
