"""Command lines of the commands that are no Lightning run. Light: imports no torch."""

import argparse
from typing import NoReturn

from nala_platform.errors import UserError, near


class Arguments(argparse.ArgumentParser):
    """An argument parser whose complaints are `UserError`; ``--help`` prints and leaves as usual.

    Args:
        command: the words before the arguments, such as ``nala evaluate``.
        what: what it does, for ``--help``.
    """

    def __init__(self, command: str, what: str) -> None:
        super().__init__(prog=command, description=what, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise."""
        raise UserError(f"{self.prog}: {message} ({self.prog} --help says more)")

    def read(self, words: list[str]) -> argparse.Namespace:
        """The values of ``words``.

        Raises:
            UserError: an unknown flag, with the nearest known one; a value missing or of another kind.
        """
        known = [flag for action in self._actions for flag in action.option_strings]
        for word in words:
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag not in known:
                self.error(f"no option {flag}{near(flag, known).rstrip('.')}")
        return self.parse_args(words)


def positive(text: str) -> int:
    """A whole number from 1 up, as the ``type`` of an argument.

    >>> positive("3")
    3
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


def seconds(text: str) -> float:
    """A length of time above 0, as the ``type`` of an argument.

    >>> seconds("1.5")
    1.5
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value
