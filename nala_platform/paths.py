"""Paths as users give them: with ``~``, and relative to the folder that a command was started in. Imports no torch.

A parameter says by its type that it is a path: `StrPath`, or ``pathlib.Path``. The command line expands ``~`` in it,
makes it absolute, and so stores, compares and hands on the same place from whatever folder the next command is started.
A parameter of type ``str | PathOrName`` takes a path too, or the name of something that is no file.
"""

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

StrPath = str | Path
"""A path on disk."""

_URL = re.compile(r"[A-Za-z][\w+.-]+://")
_started_in: ContextVar[str | None] = ContextVar("started_in", default=None)


class PathOrName(str):
    """A path on disk if it is written as one (``~/x``, ``/x``, ``./x``, ``../x``) or something is there; else a name.

    As a type it stands beside ``str``, which is what a value is.
    """


def absolute(path: StrPath) -> Path:
    """``path`` with ``~`` expanded, from the root on; ``..`` is taken out where no link makes it mean another place.

    Raises:
        ValueError: it is empty, or names the home of a user who does not exist.
    """
    if not str(path):
        raise ValueError("it is empty")
    try:
        expanded = Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path}: there is no such home folder") from error
    whole = os.path.join(_started_in.get() or os.getcwd(), expanded)
    normal = os.path.normpath(whole)
    return Path(normal if os.path.realpath(normal) == os.path.realpath(whole) else whole)


def absolute_or_name(text: str) -> str:
    """A `PathOrName` as it is stored.

    Examples:
        >>> absolute_or_name("gpt2"), absolute_or_name("/data/../tokenizer")
        ('gpt2', '/tokenizer')
    """
    is_written_so = text in ("~", ".", "..") or text.startswith(("~", "/", "./", "../"))
    if not text or not (is_written_so or os.path.lexists(os.path.join(_started_in.get() or "", text))):
        return text
    return str(absolute(text))


def is_url(text: str) -> bool:
    """Whether ``text`` names a place elsewhere, such as ``s3://bucket/run``."""
    return _URL.match(text) is not None


@contextmanager
def started_in(folder: str) -> Iterator[None]:
    """Inside, relative paths begin at ``folder`` wherever the process is: jsonargparse goes to the folder of a file."""
    token = _started_in.set(_started_in.get() or folder)
    try:
        yield
    finally:
        _started_in.reset(token)


def shown(path: StrPath) -> str:
    """``path`` for people: relative to the present folder where it lies below it.

    Examples:
        >>> shown(Path.cwd() / "runs" / "a"), shown("/tmp")
        ('runs/a', '/tmp')
    """
    folder = Path.cwd()
    return str(Path(path).relative_to(folder) if Path(path).is_relative_to(folder) else path)


def quoted(path: StrPath) -> str:
    """``path`` as a part of a command that can be pasted into a shell.

    Examples:
        >>> quoted("my runs/a")
        "'my runs/a'"
    """
    text = shown(path)
    return shlex.quote(f"./{text}" if text.startswith(("-", "~")) else text)
