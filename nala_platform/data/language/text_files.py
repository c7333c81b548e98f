"""Documents out of text files, in pieces: however long a document is, little of it is in memory at once."""

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

from nala_platform.data.language.encoding import NUL, not_utf8, nul_in_line, refuse_wide
from nala_platform.data.problems import BadFileError, Problem
from nala_platform.errors import UserError

PIECE = 4096  # characters
CHUNK = 1 << 20  # bytes
INSTALL = "pip install 'nala-platform[text]'"


class Piece(NamedTuple):
    """Some of a document's text; ``first`` tells that a document begins here. The text of an empty one is empty.

    ``group`` names what the document was taken from, where the data set tells.
    """

    text: str
    first: bool
    group: str = ""


def stop(problem: Problem) -> None:
    """What happens at a bad row, if nothing else is said.

    Raises:
        BadFileError: always.
    """
    raise BadFileError(problem)


@dataclass
class Reading:
    """How files are read, and how far.

    Attributes:
        column: the key or column of the text, in JSON lines and parquet.
        bad: told of each row that is no text; where it returns, the row is left out.
        position: bytes of files, as they lie on disk, that have been read.
    """

    column: str = "text"
    bad: Callable[[Problem], None] = stop
    position: int = 0


Reader = Callable[[Path, Reading], Iterator[Piece]]


def read_pieces(path: Path, reading: Reading) -> Iterator[Piece]:
    """The documents of a file. A plain text is one document; a line of JSON, or a row of parquet, is one.

    A document is cut behind the last end of a line in each 4096 characters, or behind 4096 where there is none; its
    pieces, joined, are the document, whatever the format. A byte-order mark at the start of a file is no text,
    and neither is a NUL anywhere.

    A row that is no text (no JSON, not UTF-8, with NULs, no such key, null, a number) is told to ``reading.bad``; an
    empty text is a document without text.

    Args:
        path: with a suffix of `READERS`.
        reading: how.

    Raises:
        BadFileError: the file as a whole is damaged, not UTF-8, has NULs (a plain text), or has no such column.
        UserError: a package is missing.
    """
    return whole(
        path, reading, next(reader for suffix, reader in READERS.items() if path.name.lower().endswith(suffix))
    )


def whole(path: Path, reading: Reading, reader: Reader) -> Iterator[Piece]:
    """What ``reader`` reads; an error on the way to the bytes is a `BadFileError`."""
    try:
        yield from reader(path, reading)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        text = f"cannot be read: {reason}; mend the file or take it out of the folder"
        raise BadFileError(Problem("unreadable", path, text)) from error


def cut(chunks: Iterable[str], group: str = "") -> Iterator[Piece]:
    """A document's pieces; the same however its text comes in.

    Examples:
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
            yield Piece(rest[:end], first, group)
            rest, first = rest[end:], False
    if rest or first:
        yield Piece(rest, first, group)


def plain(path: Path, reading: Reading) -> Iterator[Piece]:
    """A file that is one document."""
    return cut(_decoded(path, reading))


def _decoded(path: Path, reading: Reading) -> Iterator[str]:
    decoder, lines = codecs.getincrementaldecoder("utf-8-sig")(), 1
    for data in _chunks(path, reading):
        if (place := data.find(NUL)) >= 0:
            raise BadFileError(nul_in_line(path, lines + data.count(b"\n", 0, place)))
        yield from _decode(decoder, data, path, lines)
        lines += data.count(b"\n")
    yield from _decode(decoder, b"", path, lines)


def _decode(decoder: codecs.IncrementalDecoder, data: bytes, path: Path, lines: int) -> Iterator[str]:
    try:
        text = decoder.decode(data, final=not data)
    except UnicodeDecodeError as error:
        # what is decoded begins with up to three bytes of the chunk before, none of which ends a line
        line = lines + error.object[: error.start].count(b"\n")
        raise BadFileError(not_utf8(path, line)) from error
    # in slices: to cut a text copies what is left of it
    yield from (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def json_lines(path: Path, reading: Reading, group: tuple[str, ...] = ()) -> Iterator[Piece]:
    """A file with an object in each line.

    Args:
        path: the file.
        reading: how.
        group: the keys, each within the one before, under which a row has its group.
    """
    for number, line in enumerate(lines(path, reading), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            text = _text_of(row, reading.column)
        except UnicodeDecodeError:
            reading.bad(not_utf8(path, number))
        except _BadRowError as error:
            reading.bad(Problem(error.kind, path, f"line {number}: {error}"))
        except (ValueError, RecursionError) as error:
            reading.bad(Problem("unreadable", path, f"line {number}: no valid JSON: {error}; mend the line"))
        else:
            named = reduce(lambda inside, key: inside.get(key, {}) if isinstance(inside, dict) else {}, group, row)
            yield from cut(_slices(text), named if isinstance(named, str) else "")


def parquet(path: Path, reading: Reading) -> Iterator[Piece]:
    """A parquet file with a document in each row."""
    for text in parquet_rows(path, reading):
        yield from cut(_slices(text))


def parquet_rows(path: Path, reading: Reading) -> Iterator[str]:
    """The texts of a parquet file's rows."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as format
    except ImportError as error:
        raise UserError(f"{path}: parquet files are read by pyarrow, which is not installed: {INSTALL}") from error
    try:
        with format.ParquetFile(path) as file:
            if reading.column not in file.schema_arrow.names:
                raise BadFileError(Problem("missing", path, _no_column(reading.column, file.schema_arrow.names)))
            start, size, number = reading.position, path.stat().st_size, 0
            for batch in file.iter_batches(batch_size=256, columns=[reading.column]):
                for value in batch.column(0):
                    number += 1
                    try:
                        text = _text_of({reading.column: value.as_py()}, reading.column)
                    except UnicodeDecodeError:
                        reading.bad(
                            Problem("unreadable", path, f"row {number}: bytes that are not UTF-8: mend the row")
                        )
                    except _BadRowError as error:
                        reading.bad(Problem(error.kind, path, f"row {number}: {error}"))
                    else:
                        yield text
                reading.position = start + size * number // file.metadata.num_rows
    except arrow.ArrowException as error:
        text = f"cannot be read as parquet: {str(error).splitlines()[0]}; mend the file or take it out"
        raise BadFileError(Problem("unreadable", path, text)) from error


READERS: dict[str, Reader] = {
    **{f".txt{packed}": plain for packed in ("", ".gz", ".zst")},
    **{f".jsonl{packed}": json_lines for packed in ("", ".gz", ".zst")},
    ".parquet": parquet,
}


class _BadRowError(Exception):
    """A row without a text in it."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def _text_of(row: Any, column: str) -> str:
    if not isinstance(row, dict):
        raise _BadRowError("unreadable", f'a line must be an object such as {{"{column}": "…"}}')
    if column not in row:
        raise _BadRowError("missing", _no_column(column, row))
    text = row[column]
    if not isinstance(text, str):
        found = "null" if text is None else type(text).__name__
        raise _BadRowError(
            "missing" if text is None else "unreadable",
            f"{column} is {found}, not text: mend or drop the row, or name another column by --data.source.text_column",
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _BadRowError(
            "unreadable", f"{column} holds half a surrogate pair, which is no text: mend the row"
        ) from None
    if "\0" in text:
        raise _BadRowError("NUL", f"{column} holds a NUL (a character of zero), which is no text: mend the row")
    return text


def _slices(text: str) -> Iterator[str]:
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def _no_column(column: str, there: Iterable[str]) -> str:
    listed = ", ".join(list(there)[:8]) or "nothing"
    return f"no {column!r} (there: {listed}): name the column by --data.source.text_column"


def lines(path: Path, reading: Reading) -> Iterator[bytes]:
    """The lines of a file without their ends; behind a last end there is an empty one."""
    parts: list[bytes] = []
    for chunk in _chunks(path, reading):
        *ended, last = chunk.split(b"\n")
        if ended:
            yield b"".join((*parts, ended[0]))
            yield from ended[1:]
            parts = []
        parts.append(last)
    yield b"".join(parts)


def _chunks(path: Path, reading: Reading) -> Iterator[bytes]:
    """The bytes of a file, decompressed as its name says."""
    name, start = path.name.lower(), reading.position
    with path.open("rb") as file:
        if name.endswith(".zst"):
            chunks = _zst_chunks(path, file)
        else:
            packed = gzip.GzipFile(fileobj=file) if name.endswith(".gz") else file
            chunks = iter(lambda: packed.read(CHUNK), b"")
        for number, chunk in enumerate(chunks):
            if number == 0:
                refuse_wide(path, chunk)
            reading.position = start + file.tell()
            yield chunk


def _zst_chunks(path: Path, file: io.BufferedReader) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise UserError(f"{path}: .zst files are read by zstandard, which is not installed: {INSTALL}") from error
    # not zstandard's own stream: at the end of a file that was cut off it gives what there is, without a word
    make = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj
    frame, whole = make(), True
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
