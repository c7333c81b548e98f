"""Classes that have moved, so that the configuration of an older run is still read. No torch."""

import re
from typing import Any

MOVED = {
    f"nala_platform.data.{name}": f"nala_platform.data.{room}.{name}"
    for room, names in (
        ("images", ("bluemarble", "digits", "image_folder", "mask_folder", "pair_folder", "photos")),
        ("language", ("prompts", "pydocs", "text", "token_files")),
    )
    for name in names
}
_CLASS = re.compile(rf"\b({'|'.join(map(re.escape, MOVED))})(?=\.[A-Z])")


def renamed(text: str) -> str:
    """A word of a command line, or the text of a configuration, with each class named by the place where it is now.

    Examples:
        >>> renamed("class_path: nala_platform.data.digits.DigitsData")
        'class_path: nala_platform.data.images.digits.DigitsData'
    """
    return _CLASS.sub(lambda found: MOVED[found[1]], text)


def renamed_values(value: Any) -> Any:
    """A value of a configuration, or all of it, with the names of such classes renamed; other texts stay.

    Examples:
        >>> renamed_values({"class_path": "nala_platform.data.digits.DigitsData", "prompt": "a data.digits.DigitsData"})
        {'class_path': 'nala_platform.data.images.digits.DigitsData', 'prompt': 'a data.digits.DigitsData'}
    """
    if isinstance(value, dict):
        return {
            key: entry if isinstance(entry, str) and key != "class_path" else renamed_values(entry)
            for key, entry in value.items()
        }
    if isinstance(value, list):
        return [renamed_values(entry) for entry in value]
    is_name = isinstance(value, str) and re.fullmatch(r"nala_platform[.\w]+", value) is not None
    return renamed(value) if is_name else value
