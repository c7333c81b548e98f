"""Documents out of text files, in pieces: however long a document is, little of it is in memory at once."""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nala_platform.errors import UserError

PIECE = 4096  # characters
CHUNK = 1 << 20  # bytes
INSTALL = "pip install 'nala-platform[text]'"


class Piece(NamedTuple):
    """Some of a document's text; ``first`` tells that a document begins here. The text of an empty one is empty."""

    text: str
    first: bool


def read_pieces(path: Path, column: str) -> Iterator[Piece]:
    """The documents of a file. A plain text is one document; a line of JSON, or a row of parquet, is one.

    A document is cut behind the last end of a line in each 4096 characters, or behind 4096 where there is none; its
    pieces, joined, are the document, whatever the format. A byte-order mark at the start of a file is no text.

    Args:
        path: with a suffix of `READERS`.
        column: the key, or column, of the text.

    Raises:
        UserError: the file is damaged or not UTF-8; a row has no such column, or no text in it; a package is missing.
    """
    reader = next(reader for suffix, reader in READERS.items() if path.name.lower().endswith(suffix))
    try:
        yield from reader(path, column)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path} cannot be read: {reason}; mend the file or take it out of the folder") from error


def cut(chunks: Iterable[str]) -> Iterator[Piece]:
    """A document's pieces; the same however its text comes in.

    >>> [piece.text for piece in cut(["a b", "c"])]
    ['a bc']
    >>> [len(piece.text) for piece in cut(["x" * 3000, "\\n", "x" * 5000])]
    [3001, 4096, 904]
    """
    rest, first = "", True
    for chunk in chunks:
        rest += chunk
        while len(rest) > PIECE:
            end = rest.rfind("\n", 0, PIECE) + 1 or PIECE
            yield Piece(rest[:end], first)
            rest, first = rest[end:], False
    if rest or first:
        yield Piece(rest, first)


def _plain(path: Path, column: str) -> Iterator[Piece]:
    return cut(_decoded(path))


def _decoded(path: Path) -> Iterator[str]:
    decoder, lines = codecs.getincrementaldecoder("utf-8-sig")(), 1
    for data in _chunks(path):
        yield from _decode(decoder, data, path, lines)
        lines += data.count(b"\n")
    yield from _decode(decoder, b"", path, lines)


def _decode(decoder: codecs.IncrementalDecoder, data: bytes, path: Path, lines: int) -> Iterator[str]:
    try:
        text = decoder.decode(data, final=not data)
    except UnicodeDecodeError as error:
        # what is decoded begins with up to three bytes of the chunk before, none of which ends a line
        raise UserError(_not_utf8(path, lines + error.object[: error.start].count(b"\n"))) from error
    # in slices: to cut a text copies what is left of it
    yield from (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def _json_lines(path: Path, column: str) -> Iterator[Piece]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(_not_utf8(path, number)) from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place}: no valid JSON: {error}; mend the line") from error
        if not isinstance(row, dict):
            raise UserError(f'{place}: a line must be an object such as {{"{column}": "…"}}')
        if column not in row:
            raise UserError(_no_column(place, column, row))
        yield from cut(_slices(row[column], place, column))


def _parquet(path: Path, column: str) -> Iterator[Piece]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UserError(f"{path}: parquet files are read by pyarrow, which is not installed: {INSTALL}") from error
    try:
        with parquet.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise UserError(_no_column(str(path), column, file.schema_arrow.names))
            number = 0
            for batch in file.iter_batches(batch_size=256, columns=[column]):
                for text in batch.column(0):
                    number += 1
                    yield from cut(_slices(text.as_py(), f"{path}, row {number}", column))
    except arrow.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read as parquet: {reason}; mend the file or take it out") from error


READERS = {
    **{f".txt{packed}": _plain for packed in ("", ".gz", ".zst")},
    **{f".jsonl{packed}": _json_lines for packed in ("", ".gz", ".zst")},
    ".parquet": _parquet,
}


def _slices(text: Any, place: str, column: str) -> Iterator[str]:
    if not isinstance(text, str):
        raise UserError(
            f"{place}: {column} is {'null' if text is None else type(text).__name__}, not text: mend or drop the row, "
            "or name another column by --data.source.text_column"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{place}: {column} holds half a surrogate pair, which is no text: mend the row") from error
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def _no_column(place: str, column: str, there: Iterable[str]) -> str:
    listed = ", ".join(list(there)[:8]) or "nothing"
    return f"{place}: no {column!r} (there: {listed}): name the column by --data.source.text_column"


def _not_utf8(path: Path, line: int) -> str:
    return f"{path}, line {line}: bytes that are not UTF-8: convert the file, as with iconv -f LATIN1 -t UTF-8"


def _lines(path: Path) -> Iterator[bytes]:
    parts: list[bytes] = []
    for chunk in _chunks(path):
        *ended, last = chunk.split(b"\n")
        if ended:
            yield b"".join((*parts, ended[0]))
            yield from ended[1:]
            parts = []
        parts.append(last)
    yield b"".join(parts)


def _chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, decompressed as its name says."""
    name = path.name.lower()
    if name.endswith(".zst"):
        yield from _zst_chunks(path)
        return
    with gzip.open(path) if name.endswith(".gz") else path.open("rb") as file:
        while data := file.read(CHUNK):
            yield data


def _zst_chunks(path: Path) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise UserError(f"{path}: .zst files are read by zstandard, which is not installed: {INSTALL}") from error
    # not zstandard's own stream: at the end of a file that was cut off it gives what there is, without a word
    make = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj
    frame, whole = make(), True
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            while data:
                try:
                    yield frame.decompress(data)
                except zstandard.ZstdError as error:
                    raise EOFError(str(error)) from error
                data, whole = (frame.unused_data, True) if frame.eof else (b"", False)
                if whole:
                    frame = make()
    if not whole:
        raise EOFError("it ends in the middle of its zstd data")
