"""Documents that stand in two splits of a text.

Shapes: S tokens of a stream, D documents.
"""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nala_platform.data.language.tokens import SLICE, Stream

LEAST = 32  # tokens; shorter ones are often equal by chance


class Shared(NamedTuple):
    """So many of the documents of ``split`` stand in ``other`` too."""

    split: str
    other: str
    count: int
    documents: int


class Documents:
    """Compares the documents of splits, token for token, by their hashes: 8 bytes a document are kept."""

    def __init__(self) -> None:
        self._hashes: dict[str, np.ndarray] = {}

    def add(self, split: str, stream: Stream, eos: int) -> list[Shared]:
        """Take in a split; which of its documents of `LEAST` tokens or more are in the splits before it."""
        hash_D = np.fromiter(_hashes(stream, eos), dtype=np.uint64)
        shared = [
            Shared(split, other, int(np.isin(hash_D, there_D).sum()), len(hash_D))
            for other, there_D in self._hashes.items()
        ]
        self._hashes[split] = np.unique(hash_D)
        return [found for found in shared if found.count]


def _hashes(stream: Stream, eos: int) -> Iterator[int]:
    start, size = 0, len(stream.token_S)
    for first in range(0, size, SLICE):  # a stream may be larger than memory
        ends = first + np.flatnonzero(np.asarray(stream.token_S[first : first + SLICE]) == eos)
        for end in [*ends.tolist(), *([size] if first + SLICE >= size else [])]:
            if end - start >= LEAST:
                tokens = np.asarray(stream.token_S[start:end]).astype("<u4").tobytes()
                yield int.from_bytes(hashlib.blake2b(tokens, digest_size=8).digest(), "little")
            start = end + 1
