"""Images and masks that a text file names, an image a line."""

from collections.abc import Callable, Iterable
from pathlib import Path

from nala_platform.data.images.layouts.masks import MaskedImage
from nala_platform.data.names import Lookup, clash, composed
from nala_platform.data.problems import Excluded, Problem, report
from nala_platform.errors import UserError


def read_names(path: Path) -> list[str]:
    """The first word of each line, without folders and suffix; blank lines and those that begin with # are passed over.

    Names are in composed letters.

    Raises:
        UserError: the file is missing, is no text, or names nothing, or a name twice.
    """
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the list of a split cannot be read ({error}): copy it again") from error
    names = [composed(Path(words[0]).stem) for words in lines if words and not words[0].startswith("#")]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise UserError(f"{path} names {len(twice)} images twice ({', '.join(twice[:5])}): they would count twice")
    if not names:
        raise UserError(f"{path} names no image: copy it again")
    return names


def listed_pairs(
    names: Iterable[str], places: Callable[[str], tuple[Path, Path]], excluded: Excluded, source: Path
) -> list[MaskedImage]:
    """The pairs of the names in a list; files that are missing, or that two files may be, are reported.

    Args:
        names: in the list's order.
        places: where the image and the mask of a name are looked for.
        excluded: files that are left out, with their partners.
        source: the list, for the message.
    """
    pairs, problems, lookup = [], [], Lookup()
    for name in names:
        wanted = places(name)
        found = [[path for path in lookup.find(place) if path not in excluded] for place in wanted]
        missing = [place for place, files in zip(wanted, found, strict=True) if not files]
        if any(place in excluded or lookup.find(place) for place in missing):
            continue
        problems += [Problem("missing", path, f"is not there, but {source} names it") for path in missing]
        problems += [Problem("same name", files[1], clash(files[0], files[1])) for files in found if len(files) > 1]
        if all(len(files) == 1 for files in found):
            image, mask = (files[0] for files in found)
            pairs.append(MaskedImage(image, mask, image.name))
    report(problems)
    return pairs
