"""Ids in many files as one stream, read as they are needed.

Shapes: S tokens of a stream, V ids.
"""

from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np

from nala_platform.data.language.layouts.tokens import TokenFile
from nala_platform.data.language.tokens import Stream
from nala_platform.data.problems import BadFileError, Problem


class JoinedFiles:
    """A sequence of ids over several files: it has a length, and slices are read.

    Args:
        files: in their order.
        vocab_size: what all ids are below.

    Raises:
        BadFileError: when a slice is read that holds a greater id.
    """

    def __init__(self, files: list[TokenFile], vocab_size: int) -> None:
        self._files, self._vocab_size = files, vocab_size
        self._starts = [*accumulate((file.tokens for file in files), initial=0)]
        self._open: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, where: slice) -> np.ndarray:
        first, last, _ = where.indices(len(self))
        parts = [
            self._read(index, max(first, begin) - begin, min(last, end) - begin)
            for index, (begin, end) in enumerate(pairwise(self._starts))
            if begin < last and first < end
        ]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, self._files[0].kind), *parts])

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedFiles, (self._files, self._vocab_size)  # files are opened again

    def _read(self, index: int, first: int, last: int) -> np.ndarray:
        file = self._files[index]
        if index not in self._open:
            shape = (file.tokens,)
            self._open[index] = np.memmap(file.path, dtype=file.kind, mode="r", offset=file.offset, shape=shape)
        token_S = self._open[index][first:last]
        if len(token_S) and (most := int(token_S.max())) >= self._vocab_size:
            place = first + int(token_S.argmax())
            text = (
                f"token {place} is {most}, but ids are 0..{self._vocab_size - 1}: are they of another vocabulary "
                "(--data.vocab_size, --data.tokenizer), or of another type?"
            )
            raise BadFileError(Problem("wrong label", file.path, text))
        return token_S


class Widths:
    """The bytes of each token of `JoinedFiles`, by a table; none, for all, where there is no table."""

    def __init__(self, tokens: JoinedFiles, width_V: np.ndarray | None) -> None:
        self._tokens, self._width_V = tokens, width_V

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, where: slice) -> np.ndarray:
        token_S = self._tokens[where]
        return np.zeros(len(token_S), np.int64) if self._width_V is None else self._width_V[token_S]


class ReadyStream(Stream):
    """A `Stream` over files of ids. The bytes of all its tokens are 0 where they are not known.

    Args:
        files: one or more, in their order.
        vocab_size: what all ids are below.
        width_V: the bytes of each id, or None.
    """

    def __init__(self, files: list[TokenFile], vocab_size: int, width_V: np.ndarray | None) -> None:
        # no arrays, but what is asked of a stream's: a length and slices
        self.token_S = cast(np.ndarray, JoinedFiles(files, vocab_size))
        self.bytes_S = cast(np.ndarray, Widths(cast(JoinedFiles, self.token_S), width_V))
