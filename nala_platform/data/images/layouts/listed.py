"""Images and masks that a text file names, an image a line."""

from collections.abc import Callable, Iterable
from pathlib import Path

from nala_platform.data.images.layouts.masks import MaskedImage
from nala_platform.data.problems import Excluded, Problem, report
from nala_platform.errors import UserError


def read_names(path: Path) -> list[str]:
    """The first word of each line, without folders and suffix; blank lines and those that begin with # are passed over.

    Raises:
        UserError: the file is missing, is no text, or names nothing, or a name twice.
    """
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the list of a split cannot be read ({error}): copy it again") from error
    names = [Path(words[0]).stem for words in lines if words and not words[0].startswith("#")]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise UserError(f"{path} names {len(twice)} images twice ({', '.join(twice[:5])}): they would count twice")
    if not names:
        raise UserError(f"{path} names no image: copy it again")
    return names


def listed_pairs(
    names: Iterable[str], places: Callable[[str], tuple[Path, Path]], excluded: Excluded, source: Path
) -> list[MaskedImage]:
    """The pairs of the names in a list; files that are missing are reported.

    Args:
        names: in the list's order.
        places: where the image and the mask of a name are looked for.
        excluded: files that are left out, with their partners.
        source: the list, for the message.
    """
    pairs, problems = [], []
    for name in names:
        files = places(name)
        if any(path in excluded for path in files):
            continue
        missing = [path for path in files if not path.is_file()]
        problems += [Problem("missing", path, f"is not there, but {source} names it") for path in missing]
        if not missing:
            pairs.append(MaskedImage(*files, files[0].name))
    report(problems)
    return pairs
