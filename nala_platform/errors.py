"""The exceptions that the command line turns into one line and an exit code, and how a mistyped name is answered."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

Row = TypeVar("Row")


class UserError(ValueError):
    """A user's mistake: bad file, value or key.

    The message is one line that names the file, value or key and the mend. The command line prints it alone, without a
    traceback, and leaves with exit code 2; a library caller may catch it as a ``ValueError``.
    """


class DivergedError(ArithmeticError):
    """Training produced a loss that is not finite. The command line prints the one line and leaves with exit code 3."""


class StorageError(OSError):
    """A disk is full or a folder cannot be written. The command line prints the line and leaves with exit code 4."""


class StoppedError(Exception):
    """A signal asked the run to stop, and it did, at a step of its own choosing.

    The command line prints the one line and leaves with exit code 128 + ``signal``, as a shell expects.

    Args:
        message: what was saved, and how to go on.
        signal: the signal's number.
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.code = 128 + signal


class PrunedError(StoppedError):
    """A sweep gave the run up, and it stopped. The command line prints the line and leaves with exit code 6."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 0)
        self.code = 6


class ExhaustedError(MemoryError):
    """The memory of a device did not suffice. The command line prints the line and leaves with exit code 5."""


class GroupError(RuntimeError):
    """Another process of the group has failed, and so all end, with its exit code.

    Args:
        message: which process and how; empty if it has said so itself.
        code: exit code.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def near(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the nearest of ``known``, or a full stop.

    >>> near("sge", ["cls", "seg"])
    "; did you mean 'seg'?"
    """
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else "."


def look_up(table: Mapping[str, Row], name: str, *, option: str) -> Row:
    """``table[name]``; an unknown name is a `UserError` with the nearest and all known names.

    >>> look_up({"nala": 1, "softmax": 2}, "softmax", option="attention")
    2
    """
    if name not in table:
        raise UserError(f"{option}={name!r} is unknown{near(str(name), table)} Known: {', '.join(table)}")
    return table[name]
