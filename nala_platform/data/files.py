"""Files below a folder."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from nala_platform.errors import UserError


def files_under(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """All files below a folder, by suffix (small letters), sorted; hidden ones and others are passed over."""
    found: list[Path] = []
    for parent, folders, names in walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if name.lower().endswith(suffixes) and name[0] != "."]
    return sorted(found)


def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk`, through links too; a folder that cannot be read is refused, where `os.walk` passes it over.

    Raises:
        UserError: names that folder.
    """

    def refuse(error: OSError) -> NoReturn:
        raise UserError(f"cannot read the folder {error.filename}: {error.strerror}: let this user read it") from error

    return os.walk(folder, followlinks=True, onerror=refuse)


def check_folder(folder: Path, option: str = "data.root") -> None:
    """Refuse what is no folder.

    Args:
        folder: as the user gave it.
        option: the key that it was given by.

    Raises:
        UserError: nothing is there, a file, or a folder that cannot be read.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{option}: {folder} is a file, not a folder")
    if not folder.is_dir():
        raise UserError(f"{option}: folder {folder} does not exist")
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise UserError(f"{option}: cannot read {folder}: {error.strerror}: let this user read it") from error
