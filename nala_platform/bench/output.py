"""Where figures go: the terminal, and CSV files that say which machine they are of."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from nala_platform.errors import UserError
from nala_platform.runs import write_atomic

_WIDE = 170  # columns, where no terminal says how many there are


def ready(folder: Path | None) -> None:
    """Make the folder, before anything is measured in vain; None: none is wanted.

    Raises:
        UserError: it cannot be made.
    """
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {folder}: {error.strerror}: give a folder, or the name of a new one") from error


def show(table: Table) -> None:
    """Print it, in full width where the output is no terminal."""
    console = Console()
    (console if console.is_terminal else Console(width=_WIDE)).print(table)


def columns(title: str, words: Iterable[str], numbers: Iterable[str]) -> Table:
    """A table without rows."""
    table = Table(title=title, title_justify="left")
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def cell(value: float | None, digits: int) -> str:
    """A number, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"


def write_csv(path: Path, about: Sequence[str], fields: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """``# `` and each line of ``about``, then the table; numbers with six digits."""
    text = io.StringIO()
    text.writelines(f"# {line}\n" for line in about)
    table = csv.writer(text, lineterminator="\n")
    table.writerow(fields)
    for row in rows:
        table.writerow(f"{value:.6g}" if isinstance(value, float) else value for value in row)
    write_atomic(path, text.getvalue())
