"""A corpus as tokens on disk, read through a memory map: what is in memory does not grow with the text.

Shapes: S tokens of a stream.
"""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nala_platform.data.corpus import PARTS, Corpus
from nala_platform.data.samples import Part
from nala_platform.data.text_files import Piece
from nala_platform.data.token_cache import kept, key
from nala_platform.data.tokenizer import identity
from nala_platform.data.tokens import Stream, encode
from nala_platform.errors import UserError

BATCH = 256  # pieces that are encoded together
WIDTH = np.dtype("<u2")  # a piece of 4096 characters has at most 16384 bytes


class MappedStream(Stream):
    """A `Stream` in two files of the cache; a copy that is sent to another process opens them again."""

    def __init__(self, folder: Path, part: Part, kind: str) -> None:
        self._files = (folder, part, kind)
        self.token_S = np.memmap(folder / f"{part}.tokens", dtype=kind, mode="r")
        self.bytes_S = np.memmap(folder / f"{part}.bytes", dtype=WIDTH, mode="r")

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedStream, self._files


class Head(Stream):
    """The beginning of another stream, up to ``tokens`` of it, in memory as int64."""

    def __init__(self, stream: Stream, tokens: int) -> None:
        self.token_S, self.bytes_S = (part[:tokens].astype(np.int64) for part in (stream.token_S, stream.bytes_S))


class TokenStore:
    """The streams of a corpus's parts, made once and kept in ``cache``.

    Args:
        corpus: the text.
        tokenizer: a fast one with an end of documents.
        cache: the folder of the cache.

    Attributes:
        facts: for each part, ``documents``, ``empty`` (documents without text, which are passed over), ``tokens`` (as
            many as are predicted) and ``bytes``.

    Raises:
        UserError: text cannot be read, a part has none, or the cache cannot be written.
    """

    def __init__(self, corpus: Corpus, tokenizer: Any, cache: Path) -> None:
        self._corpus, self._tokenizer = corpus, tokenizer
        self._kind = "<u2" if len(tokenizer) <= 2**16 else "<u4"
        self._folder = cache / f"tokens-{key(corpus=corpus.key(), tokenizer=identity(tokenizer))}"
        self.facts: dict[str, dict[str, int]] = kept(self._folder, self._make)

    def stream(self, part: Part) -> Stream:
        """The tokens of a part."""
        return MappedStream(self._folder, part, self._kind)

    def _make(self, folder: Path) -> dict[str, Any]:
        writers = {part: _Writer(folder, part, self._tokenizer.eos_token_id, self._kind) for part in PARTS}
        pieces = self._corpus.pieces()
        while batch := list(islice(pieces, BATCH)):
            encoded = encode([piece.text for _, piece in batch], self._tokenizer)
            for (part, piece), (token_N, bytes_N) in zip(batch, encoded, strict=True):
                writers[part].add(piece, token_N, bytes_N)
        facts = {part: writer.finish() for part, writer in writers.items()}
        for part in PARTS if self._corpus.has_test else PARTS[:2]:
            if not facts[part]["bytes"]:
                raise UserError(f"data.root: {self._corpus.root} has no text for {part}: its files are empty")
        return facts


class _Writer:
    """Writes one stream: eos, then documents, each ended by eos."""

    def __init__(self, folder: Path, part: Part, eos: int, kind: str) -> None:
        self._kind, self._eos = np.dtype(kind), np.array([eos])
        self._files = [(folder / f"{part}.{name}").open("wb") for name in ("tokens", "bytes")]
        self._facts = {"documents": 0, "empty": 0, "tokens": 0, "bytes": 0}

    def add(self, piece: Piece, token_N: np.ndarray, bytes_N: np.ndarray) -> None:
        """Append a piece."""
        if not piece.text:
            self._facts["empty"] += 1
            return
        if piece.first:
            self._facts["documents"] += 1
            self._write(self._eos, np.zeros(1))
        self._write(token_N, bytes_N)

    def finish(self) -> dict[str, int]:
        """End the last document; how much there is."""
        self._write(self._eos, np.zeros(1))
        for file in self._files:
            file.close()
        return self._facts | {"tokens": self._facts["tokens"] - 1}

    def _write(self, token_N: np.ndarray, bytes_N: np.ndarray) -> None:
        for file, values, kind in zip(self._files, (token_N, bytes_N), (self._kind, WIDTH), strict=True):
            file.write(values.astype(kind).tobytes())
        self._facts["tokens"] += len(token_N)
        self._facts["bytes"] += int(bytes_N.sum())
