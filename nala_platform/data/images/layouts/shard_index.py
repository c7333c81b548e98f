"""Where the pictures of tar shards lie: found by reading the headers of all members, and kept for large ones.

Shapes: N pictures, S shards.
"""

import os
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nala_platform.data.cache import default_folder, kept, key
from nala_platform.data.names import composed
from nala_platform.data.problems import Excluded, Problem, report
from nala_platform.errors import UserError

PICTURES = ("jpg", "jpeg", "png", "webp")
LABEL = "cls"
LARGE = 1 << 30  # bytes of shards together, from which on their index is kept
_FILE = "index.npz"
REPORTED = 3  # raised when more is: an index that was kept before knew nothing of it

Member = tuple[str, int, int, int]  # name, offset, size, label of a picture
Labelled = tuple[tarfile.TarInfo, tarfile.TarInfo]  # a picture and its label


class Index(NamedTuple):
    """The labelled pictures of some shards, in their order.

    Attributes:
        names: of all, one after the other.
        end_N: where each name begins, and the end of the last: ``(N + 1,)``.
        offset_N: of the bytes in the shard.
        size_N: of the bytes.
        label_N: int64.
        end_S: the first picture of each shard, and N: ``(S + 1,)``.
    """

    names: np.ndarray
    end_N: np.ndarray
    offset_N: np.ndarray
    size_N: np.ndarray
    label_N: np.ndarray
    end_S: np.ndarray


class _FlawedError(Exception):
    """An index with problems, which is not kept: they are to be told each time."""

    def __init__(self, index: Index, problems: list[Problem]) -> None:
        super().__init__()
        self.index, self.problems = index, problems


def index_of(paths: Sequence[Path], excluded: Excluded) -> Index:
    """The index of shards; what is wrong with them is reported, but for what is excluded.

    That of shards of a gigabyte or more is kept in the user's cache folder (``XDG_CACHE_HOME``) under their names,
    sizes and times: to read the headers of a million pictures takes minutes.
    """
    states = [path.stat() for path in paths]
    if sum(state.st_size for state in states) < LARGE:
        index, problems = _surveyed(paths)
    else:
        facts = [
            [str(path.absolute()), state.st_size, state.st_mtime_ns] for path, state in zip(paths, states, strict=True)
        ]
        index, problems = _kept(paths, default_folder() / f"shards-{key(shards=facts, reported=REPORTED)}")
    report([problem for problem in problems if problem.path not in excluded])
    return index


def _kept(paths: Sequence[Path], folder: Path) -> tuple[Index, list[Problem]]:
    def make(temporary: Path) -> dict[str, Any]:
        print(f"nala: note: reading the headers of {len(paths)} shards, once: {folder}", file=sys.stderr)
        index, problems = _surveyed(paths)
        if problems:
            raise _FlawedError(index, problems)
        np.savez(temporary / _FILE, **index._asdict())
        return {}

    try:
        kept(folder, make)
    except _FlawedError as flawed:
        return flawed.index, flawed.problems
    except UserError:
        print(
            f"nala: note: {folder.parent} cannot be written: each start reads the headers of all shards; "
            "XDG_CACHE_HOME names another folder",
            file=sys.stderr,
        )
        return _surveyed(paths)
    with np.load(folder / _FILE) as arrays:
        return Index(**arrays), []


def _surveyed(paths: Sequence[Path]) -> tuple[Index, list[Problem]]:
    found: list[list[Member]] = []
    problems: list[Problem] = []
    for path in paths:
        pairs, wrong = _pairs(path)
        members, strange = _members(path, pairs)
        found.append(members)
        problems += wrong + strange
    rows = [member for members in found for member in members]
    encoded = [os.fsencode(name) for name, *_ in rows]
    numbers_N3 = np.array([numbers for _, *numbers in rows], dtype=np.int64).reshape(-1, 3)
    offset_N, size_N, label_N = numbers_N3.T.copy()
    index = Index(
        np.frombuffer(b"".join(encoded), dtype=np.uint8),
        np.cumsum([0, *map(len, encoded)]),
        offset_N,
        size_N,
        label_N,
        np.cumsum([0, *map(len, found)]),
    )
    return index, problems


def _pairs(path: Path) -> tuple[list[Labelled], list[Problem]]:
    """The pictures of a shard with their labels; of two of one sample the first."""
    pictures: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, tarfile.TarInfo] = {}
    kinds = {**dict.fromkeys(PICTURES, pictures), LABEL: labels}
    problems = []
    try:
        # not transparently: a packed archive has no offsets to read at
        with tarfile.open(path, "r:") as archive:
            for info in archive:
                folder, _, name = info.name.rpartition("/")
                stem, _, suffix = name.partition(".")
                kind = kinds.get(suffix.lower())
                if not info.isfile() or not stem or kind is None:
                    continue
                first = kind.setdefault(composed(f"{folder}/{stem}"), info)
                if first is not info:
                    text = f"the sample has {Path(first.name).name} already: write the shard again with one of them"
                    problems.append(Problem("duplicate", path / info.name, text))
    except (tarfile.TarError, OSError, EOFError) as error:
        text = f"cannot be read as a plain tar archive ({error}): unpack it if it is compressed, else copy it again"
        problems.append(Problem("unreadable", path, text))
    lonely = [(pictures[stem], LABEL) for stem in pictures if stem not in labels]
    lonely += [(labels[stem], PICTURES[0]) for stem in labels if stem not in pictures]
    problems += [
        Problem("unpaired", path / info.name, f"the shard has no .{suffix} of this name") for info, suffix in lonely
    ]
    return [(pictures[stem], labels[stem]) for stem in pictures if stem in labels], problems


def _members(path: Path, pairs: list[Labelled]) -> tuple[list[Member], list[Problem]]:
    found, problems = [], []
    with path.open("rb") as file:
        for picture, label in pairs:
            file.seek(label.offset_data)
            text = file.read(label.size).strip()
            if text.isdigit():
                found.append((picture.name, picture.offset_data, picture.size, int(text)))
            else:
                shown = text[:20].decode(errors="replace")
                problems.append(Problem("wrong label", path / picture.name, f"its .{LABEL} is {shown!r}, no number"))
    return found, problems
