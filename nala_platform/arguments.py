"""Command lines of the commands that are no Lightning run. Light: imports no torch."""

import argparse
from pathlib import Path
from typing import NoReturn

from nala_platform.errors import UserError, near
from nala_platform.paths import absolute


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
        joined = self._joined(words)
        known = list(self._option_string_actions)
        flags = [word.partition("=")[0] for word in joined]
        if wrong := [flag for flag in flags if flag.startswith("--") and flag not in known]:
            self.error("; ".join(f"no option {flag}{near(flag, known).rstrip('.')}" for flag in wrong))
        return super().parse_args(joined)

    def split(self, words: list[str]) -> tuple[argparse.Namespace, list[str]]:
        """The values of those ``words`` that are options here, and the other words."""
        return super().parse_known_args(self._joined(words))

    def _joined(self, words: list[str]) -> list[str]:
        """``--flag value`` as ``--flag=value``, since a text may begin with a dash."""
        joined: list[str] = []
        rest = list(words)
        while rest:
            word = rest.pop(0)
            action = self._option_string_actions.get(word)
            takes_one = action is not None and action.nargs is None
            if takes_one and rest and rest[0].partition("=")[0] not in self._option_string_actions:
                word = f"{word}={rest.pop(0)}"
            joined.append(word)
        return joined


def path(text: str) -> Path:
    """A path on disk, absolute and with ``~`` expanded, as the ``type`` of an argument."""
    try:
        return absolute(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no path: {error}") from error


def positive(text: str) -> int:
    """A whole number from 1 up, as the ``type`` of an argument.

    Examples:
        >>> positive("3")
        3
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


def seconds(text: str) -> float:
    """A length of time above 0, as the ``type`` of an argument.

    Examples:
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
