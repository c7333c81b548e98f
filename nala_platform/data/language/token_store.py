"""A corpus as tokens on disk, read through a memory map: what is in memory does not grow with the text.

All text is encoded once, before training, into the cache; blocks are read from there by their number, so the position
of a run in its data is (epoch, samples consumed) and nothing else, whatever was tokenised when. Encoding reads the
files as a stream, notes every `EVERY` batches how far it is, and is gone on with where it was killed.

Shapes: S tokens of a stream.
"""

import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nala_platform.data.base import Part
from nala_platform.data.cache import kept, key
from nala_platform.data.language.bad_rows import BadRows
from nala_platform.data.language.corpus import PARTS, Corpus, Place
from nala_platform.data.language.token_progress import Progress
from nala_platform.data.language.token_writer import WIDTH, begun, note, problems, told
from nala_platform.data.language.tokenizer import identity
from nala_platform.data.language.tokens import Stream, encode
from nala_platform.errors import UserError

BATCH = 64  # pieces that are encoded together; their tokens are objects of some 100 bytes for a moment
EVERY = 128  # batches between two notes of the journal
HEAD = 1 << 22  # tokens of the test part that items of multiple choice are taken from


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
            many as are predicted), ``bytes``, ``words`` (between spaces), ``lines`` (ends of lines), and ``groups``,
            the documents of each where the data set tells them.
        bad: rows that were left out.

    Raises:
        UserError: text cannot be read, a part has none, or the cache cannot be written.
        BadFileError: more rows are no text than may be left out.
        StorageError: the disk has no room for the tokens.
    """

    def __init__(self, corpus: Corpus, tokenizer: Any, cache: Path) -> None:
        self._corpus, self._tokenizer = corpus, tokenizer
        self._kind = "<u2" if len(tokenizer) <= 2**16 else "<u4"
        self._folder = cache / f"tokens-{key(corpus=corpus.key(), tokenizer=identity(tokenizer))}"
        found = kept(self._folder, self._make, unfinished="continued")
        self.facts: dict[str, dict[str, Any]] = found["parts"]
        self.bad = BadRows(corpus.bad_rows)
        self.bad.count, self.bad.problems = found["bad"]["count"], problems(found["bad"], corpus.root)
        self.bad.check()

    def stream(self, part: Part) -> Stream:
        """The tokens of a part."""
        return MappedStream(self._folder, part, self._kind)

    def _make(self, folder: Path) -> dict[str, Any]:
        root, bad = self._corpus.root, BadRows(self._corpus.bad_rows)
        with begun(folder, root, self._tokenizer.eos_token_id, self._kind, bad) as (writers, place):
            if place != Place():
                print("nala: note: going on with the tokens where an earlier process was stopped", file=sys.stderr)
            pieces = self._corpus.behind(place, bad)
            progress, number = None, 0
            while batch := list(islice(pieces, BATCH)):
                read = self._corpus.reading.position
                progress = progress or Progress(folder, self._corpus.size(), before=read)
                encoded = encode([piece.text for _, piece, _ in batch], self._tokenizer)
                for (part, piece, _), (token_N, bytes_N) in zip(batch, encoded, strict=True):
                    writers[part].add(piece, token_N, bytes_N)
                place, number = batch[-1][2], number + 1
                if number % EVERY == 0:
                    note(folder, writers, place, told(bad, root))
                progress.step(read, sum(writer.written() for writer in writers.values()))
            if progress is not None:
                progress.end()
            note(folder, writers, self._corpus.end(), told(bad, root))
            facts = {part: writer.finish() for part, writer in writers.items()}
        for part in PARTS if self._corpus.has_test else PARTS[:2]:
            if not facts[part]["bytes"]:
                raise UserError(f"data.root: {self._corpus.root} has no text for {part}{self._why()}")
        return {"parts": facts, "bad": told(bad, root)}

    def _why(self) -> str:
        share = self._corpus.texts.share
        if self._corpus.texts.held_out == "documents":
            return f": too few documents for a share of {share}: raise it by --data.source.hold_out"
        return ": its files are empty"
