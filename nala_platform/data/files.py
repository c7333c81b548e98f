"""Files below a folder."""

import os
from pathlib import Path


def files_under(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """All files below a folder, by suffix (small letters), sorted; hidden ones and others are passed over."""
    found: list[Path] = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if name.lower().endswith(suffixes) and name[0] != "."]
    return sorted(found)
