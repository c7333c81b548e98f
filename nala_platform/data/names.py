"""Names of files that mean the same: composed and decomposed letters, and suffixes in capitals.

macOS writes the letter é as e and an accent (Unicode's form NFD), most other systems as one character (NFC). Both look
alike, so wherever the names of two lists meet, they meet in NFC.
"""

import os
import unicodedata
from pathlib import Path


def composed(name: str) -> str:
    """The name in NFC; bytes that are no text stay what they are.

    Examples:
        >>> composed("e\\u0301") == "\\xe9"
        True
    """
    return unicodedata.normalize("NFC", name)


def small_suffix(name: str) -> str:
    """The name with its suffix in small letters.

    Examples:
        >>> small_suffix("DSC_1.JPG")
        'DSC_1.jpg'
    """
    stem, suffix = os.path.splitext(name)
    return stem + suffix.lower()


def clash(one: Path, other: Path) -> str:
    """Why two files cannot both be used; names that look alike are written out."""
    if one.stem != other.stem and composed(one.stem) == composed(other.stem):
        return (
            f"{one.name!a} and {other.name!a} are one name, in composed and in decomposed letters (Unicode NFC "
            "and NFD): keep one"
        )
    return f"{one.name} and {other.name} have the same name but for the suffix: keep one"


class Lookup:
    """Finds files by name as lists of names spell them; reads each folder once."""

    def __init__(self) -> None:
        self._folders: dict[Path, dict[str, list[Path]]] = {}

    def find(self, path: Path) -> list[Path]:
        """The files that ``path`` may mean, sorted: none where it is missing, two or more where one must go."""
        if path.parent not in self._folders:
            self._folders[path.parent] = _listed(path.parent)
        return self._folders[path.parent].get(composed(small_suffix(path.name)), [])


def _listed(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return found
    for name in names:
        found.setdefault(composed(small_suffix(name)), []).append(folder / name)
    return found
