"""Text that is not UTF-8, or holds NULs: what it most likely is, and how to convert it."""

import codecs
import shlex
from pathlib import Path

from nala_platform.data.problems import BadFileError, Problem

NUL = b"\0"
HEAD = 1 << 12  # bytes that the encoding of a file is guessed from
# in this order: the mark of UTF-32 begins with that of UTF-16
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
# the share of NULs, by the place of a byte within four, in text that is mostly ASCII
_PATTERNS = {(0, 1, 1, 1): "UTF-32LE", (1, 1, 1, 0): "UTF-32BE", (0, 1, 0, 1): "UTF-16LE", (1, 0, 1, 0): "UTF-16BE"}


def wide_encoding(head: bytes) -> str | None:
    """UTF-16 or UTF-32, as ``iconv`` calls it, if the first bytes of a file tell so.

    A byte-order mark tells; without one, NULs at half or three quarters of the places, always the same ones.

    Examples:
        >>> wide_encoding("text".encode("utf-16")), wide_encoding("text".encode("utf-16-be")), wide_encoding(b"text")
        ('UTF-16', 'UTF-16BE', None)
    """
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    head = head[: len(head) // 4 * 4]
    if not head:
        return None
    shares = [head[place::4].count(0) / (len(head) // 4) for place in range(4)]
    for pattern, name in _PATTERNS.items():
        if all(share > 0.6 if is_nul else share < 0.2 for share, is_nul in zip(shares, pattern, strict=True)):
            return name
    return None


def refuse_wide(path: Path, head: bytes) -> None:
    """Refuse a file in UTF-16 or UTF-32, by its first bytes.

    Raises:
        BadFileError: it is.
    """
    if (name := wide_encoding(head[:HEAD])) is not None:
        raise BadFileError(Problem("unreadable", path, f"the text is in {name}, not UTF-8: {_convert(path, name)}"))


def not_utf8(path: Path, line: int) -> Problem:
    """Bytes in a line that are no UTF-8; which of the 8-bit encodings they are in, bytes alone do not tell."""
    text = f"bytes that are not UTF-8: {_convert(path, 'ENCODING')}, from the encoding that it was written in"
    return Problem("unreadable", path, f"line {line}: {text}")


def nul_in_line(path: Path, line: int) -> Problem:
    """A NUL in a line of text."""
    text = "a NUL (a byte of zero), which is no text: the file is damaged or binary; take it out, as with tr -d '\\000'"
    return Problem("NUL", path, f"line {line}: {text}")


def _convert(path: Path, name: str) -> str:
    return f"convert the file, as with iconv -f {name} -t UTF-8 {shlex.quote(path.name)}"
