"""Classes that have moved, so that the configuration of an older run is still read. No torch."""

import re

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

    >>> renamed("class_path: nala_platform.data.digits.DigitsData")
    'class_path: nala_platform.data.images.digits.DigitsData'
    """
    return _CLASS.sub(lambda found: MOVED[found[1]], text)
