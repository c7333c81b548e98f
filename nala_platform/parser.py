"""Reads a command line and its files as Lightning does, but with errors of one line, and older runs' files too."""

import re
from typing import Any, NoReturn

import yaml
from jsonargparse import get_loader, set_loader
from lightning.pytorch.cli import LightningArgumentParser

from nala_platform.errors import UserError
from nala_platform.runs.moved import renamed

_read_yaml = get_loader("yaml")
# the one place that every file goes through
set_loader("yaml", lambda text: _read_yaml(renamed(text)), exceptions=(yaml.YAMLError,))


class Parser(LightningArgumentParser):
    """Lets a parsing error out as an exception, instead of a usage text of several hundred lines."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise; `nala_platform.parse_errors.explain` makes one line of it."""
        raise UserError(message) from ex

    def parse_args(self, args: Any = None, *others: Any, **options: Any) -> Any:
        """Let ``null`` be null below a class path too: jsonargparse hands such a value on as Python writes it.

        A class that has moved is found by its old name.
        """
        if args is not None:
            args = [renamed(f"{word[:-4]}null" if re.fullmatch(r"--[\w.]+=None", word) else word) for word in args]
        return super().parse_args(args, *others, **options)
