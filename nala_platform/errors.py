"""The exceptions that the command line turns into one line and an exit code, and how a mistyped name is answered."""

import difflib
import errno
import os
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import TypeVar

Row = TypeVar("Row")


class ExitCode(IntEnum):
    """How a ``nala`` process ends. A process that ends by a signal has 128 + the signal's number instead.

    This is the only list: the command line, the errors below, sweeps and the README follow it.
    """

    SUCCESS = 0
    FAILURE = 1  # a bug, with its traceback; or a check has found something: check-data, verify-resume
    USER_ERROR = 2
    DIVERGED = 3
    STORAGE = 4
    OUT_OF_MEMORY = 5
    PRUNED = 6
    INCOMPLETE = 7  # predict and generate: inputs that cannot be read were skipped, the rest is written


FIRST_SIGNAL = 128  # added to a signal's number, as shells do


class NalaError(Exception):
    """An error that the command line prints as one line, without a traceback, and leaves with its exit code.

    Attributes:
        code: an `ExitCode`, or `FIRST_SIGNAL` + the number of a signal.
    """

    code: int = ExitCode.FAILURE


class UserError(NalaError, ValueError):
    """A user's mistake: bad file, value or key.

    The message is one line that names the file, value or key and the fix. A library caller may catch it as a
    ``ValueError``.
    """

    code = ExitCode.USER_ERROR


class DivergedError(NalaError, ArithmeticError):
    """Training produced a loss that is not finite."""

    code = ExitCode.DIVERGED


class StorageError(NalaError, OSError):
    """A disk is full or a folder cannot be written."""

    code = ExitCode.STORAGE


class ExhaustedError(NalaError, MemoryError):
    """The memory of a device did not suffice."""

    code = ExitCode.OUT_OF_MEMORY


class StoppedError(NalaError):
    """A signal asked the run to stop, and it did, at a step of its own choosing.

    Args:
        message: what was saved, and how to resume.
        signal: the signal's number.
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.code = FIRST_SIGNAL + signal


class PrunedError(StoppedError):
    """A sweep gave the run up, and it stopped."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 0)
        self.code = ExitCode.PRUNED


class IncompleteError(NalaError):
    """Some of the inputs of a prediction could not be read; those of the others are written."""

    code = ExitCode.INCOMPLETE


class GroupError(NalaError, RuntimeError):
    """Another process of the group has failed, and so all end, with its exit code.

    Args:
        message: which process and how; empty if it has said so itself.
        code: exit code.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


# What only writing is answered with.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What reading is answered with too.
_NO_RIGHT = (errno.EACCES, errno.EPERM)
_UNREADABLE = (*_NO_RIGHT, errno.EIO, errno.ESTALE, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def storage_error(what: object, error: OSError) -> StorageError:
    """The `StorageError` for ``what`` that could not be written, with the fix.

    Examples:
        >>> str(storage_error("a.csv", OSError(errno.ENOSPC, "No space left on device")))
        'cannot write a.csv: No space left on device: make room there'
    """
    fix = "make room there" if error.errno in _NO_ROOM else "see that this user may write there"
    return StorageError(f"cannot write {what}: {error.strerror or error}: {fix}")


def from_os_error(error: OSError) -> NalaError | None:
    """What an error of the operating system means: a disk that cannot be written, or a file that cannot be read.

    Returns:
        A `StorageError` for a write, a `UserError` for a read, each with the path and the fix; None for any other.
    """
    if error.errno in (*_NO_ROOM, errno.EROFS):
        return storage_error(error.filename or "a file", error)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return UserError(f"{error.strerror}: raise the limit (ulimit -n), or lower --data.num_workers")
    if error.errno not in _UNREADABLE or not isinstance(error.filename, str | bytes | os.PathLike):
        return None
    path = os.fsdecode(error.filename)
    if error.errno in _NO_RIGHT and (error.filename2 is not None or _is_unwritable(path)):
        return storage_error(path, error)
    return UserError(f"cannot read {path}: {error.strerror}: see that it is whole and that this user may read it")


def _is_unwritable(path: str) -> bool:
    """Whether it, or the folder that it would be made in, can be read and not written."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path) or "."
    is_effective = os.access in os.supports_effective_ids
    can_read = os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0), effective_ids=is_effective)
    return can_read and not os.access(path, os.W_OK, effective_ids=is_effective)


def near(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the nearest of ``known``, or one that begins with ``word``; else a full stop.

    Examples:
        >>> near("sge", ["cls", "seg"]), near("seed", ["data", "seed_everything"])
        ("; did you mean 'seg'?", "; did you mean 'seed_everything'?")
    """
    names = list(known)
    matches = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    matches = matches or [name for name in names if len(word) > 2 and name.startswith(word)]
    return f"; did you mean {matches[0]!r}?" if matches else "."


def look_up(table: Mapping[str, Row], name: str, *, option: str) -> Row:
    """``table[name]``; an unknown name is a `UserError` with the nearest and all known names.

    Examples:
        >>> look_up({"nala": 1, "softmax": 2}, "softmax", option="attention")
        2
    """
    if name not in table:
        raise UserError(f"{option}={name!r} is unknown{near(str(name), table)} Known: {', '.join(table)}")
    return table[name]
