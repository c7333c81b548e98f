"""Files below a folder."""

import os
from pathlib import Path

from nala_platform.errors import UserError


def files_under(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """All files below a folder, by suffix (small letters), sorted; hidden ones and others are passed over."""
    found: list[Path] = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if name.lower().endswith(suffixes) and name[0] != "."]
    return sorted(found)


def check_folder(folder: Path, option: str = "data.root") -> None:
    """Refuse what is no folder.

    Args:
        folder: as the user gave it.
        option: the key that it was given by.

    Raises:
        UserError: nothing is there, or a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{option}: {folder} is a file, not a folder")
    if not folder.is_dir():
        raise UserError(f"{option}: folder {folder} does not exist")
