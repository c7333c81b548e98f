"""Large pictures and the small ones that belong to them, found by name and compared by size.

Shapes: H W pixels of the large picture, S scale.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image

from nala_platform.data.images.eight_bit import samples_of
from nala_platform.data.images.image_file import opened, read_image
from nala_platform.data.images.pictures import SUFFIXES, pictures_under
from nala_platform.data.names import clash, composed
from nala_platform.data.problems import BadFileError, Excluded, Problem, report

SURVEYED = 4096  # pairs of a split whose headers are read before training starts; those of the others with the pixels

# what Pillow calls the pixels of a PNG or TIFF that are brought to 8 bits
DEEP = {
    "I;16": "16-bit grey: divided by 257, rounded",
    "RGB;16": "16-bit colour: divided by 257, rounded",
}


@dataclass(frozen=True)
class PairSource:
    """A folder of large pictures, and where the small ones are.

    Attributes:
        large: the folder.
        small: the folder of the small ones, which may be the same; ``None``: they are made.
        ends: of the names of large and of small ones, suffixes apart; a file that ends otherwise is neither.
        depth: whether pictures in the folders below it count.
        prefix: of the names that the pictures go by.
    """

    large: Path
    small: Path | None = None
    ends: tuple[str, str] = ("", "")
    depth: Literal["all", "one"] = "all"
    prefix: str = ""


class PairFiles(NamedTuple):
    """A large picture; the small one where there is one; the place of its test set where it is of one of several."""

    name: str
    large: Path
    small: Path | None
    part: int | None = None


class Header(NamedTuple):
    """Width and height, upright, and how the pixels come to 8 bits if they have more (see `DEEP`)."""

    size: tuple[int, int]
    deep: str = ""


def pair_up(source: PairSource, scale: int, excluded: Excluded) -> list[PairFiles]:
    """The large pictures of a folder with their small ones, sorted by name.

    To ``0001.png`` belong ``0001.png``, ``0001x4.png``, ``0001_x4.png``, ``0001_LR.png``, ``0001_LRx4.png`` or
    ``0001_LR_x4.png`` (for S = 4); a large one's ``_HR`` is dropped. An empty folder, two pictures of one name and
    pictures without a partner are reported; a pair is left out if either of its files is excluded.
    """
    large = _by_stem(source.large, source.ends[0], source.depth, excluded)
    names = {stem: f"{source.prefix}{path.relative_to(source.large).as_posix()}" for stem, path in large.items()}
    if source.small is None:
        return [PairFiles(names[stem], path, None) for stem, path in large.items() if path not in excluded]
    small = _by_stem(source.small, source.ends[1], source.depth, excluded)
    partner = {stem: next((name for name in _small_names(stem, scale) if name in small), None) for stem in large}
    lonely = {stem: path for stem, path in large.items() if partner[stem] is None and small}
    strange = [small[name] for name in sorted(small.keys() - set(partner.values())) if large]
    texts = [(path, f"has no small picture in {source.small}: {_wanted(stem, scale)}") for stem, path in lonely.items()]
    texts += [(path, f"has no large picture in {source.large}: add it or delete this") for path in strange]
    report([Problem("unpaired", path, text) for path, text in texts if path not in excluded])
    pairs = [PairFiles(names[stem], path, small[name]) for stem, path in large.items() if (name := partner[stem])]
    return [pair for pair in pairs if pair.large not in excluded and (pair.small or pair.large) not in excluded]


def _small_names(stem: str, scale: int) -> list[str]:
    """What the small picture of a large one may be called, suffixes apart, the likeliest first."""
    base = stem.removesuffix("_HR")
    ends = ("", f"x{scale}", f"_x{scale}", "_LR", f"_LRx{scale}", f"_LR_x{scale}")
    return list(dict.fromkeys([stem, *(base + end for end in ends)]))


def _wanted(stem: str, scale: int) -> str:
    base = stem.removesuffix("_HR")
    return f"add {stem}, {base}x{scale} or {base}_LR"


def _by_stem(folder: Path, end: str, depth: str, excluded: Excluded) -> dict[str, Path]:
    """Pictures by what pairs them; of two with one name the second is reported, unless one is excluded."""
    found: dict[str, Path] = {}
    twice = []
    for path in pictures_under(folder):
        stem = composed(path.relative_to(folder).with_suffix("").as_posix())
        if not stem.endswith(end) or (depth == "one" and path.parent != folder):
            continue
        other = found.setdefault(stem, path)
        if other is path or path in excluded:
            continue
        if other in excluded:
            found[stem] = path
        else:
            text = f"{other.name} has the same name but for the suffix: keep one"
            twice.append(Problem("same name", path, text if other.stem == path.stem else clash(other, path)))
    report(twice)
    if not found:
        what = f"picture whose name ends in {end}" if end else "picture"
        report([Problem("empty", folder, f"holds no {what} ({' '.join(SUFFIXES)})")])
    return found


def survey(split: str, files: list[PairFiles], scale: int, least: int) -> tuple[list[PairFiles], dict[str, int]]:
    """The pairs that fit, and how many of their pictures have more than 8 bits, by `DEEP`.

    Of more than `SURVEYED` pairs so many are looked at, evenly spread. What does not fit is reported.

    Args:
        split: for the messages.
        files: the pairs.
        scale: S.
        least: pixels that each side of a large picture must have.
    """
    step = max(1, -(-len(files) // SURVEYED))
    problems, deep, unfit = [], Counter[str](), set()
    for place, pair in list(enumerate(files))[::step]:
        try:
            large, small = _header(pair.large), None if pair.small is None else _header(pair.small)
            deep.update(header.deep for header in (large, small) if header is not None and header.deep)
            problem = fault(pair, large.size, None if small is None else small.size, scale, least, split)
            if problem is not None:  # looked into, since an orientation may stand behind the pixels
                sizes = [None if path is None else read_image(path).size for path in (pair.large, pair.small)]
                problem = fault(pair, sizes[0] or large.size, sizes[1], scale, least, split)
        except BadFileError as error:
            problem = error.problem
        if problem is not None:
            problems.append(problem)
            unfit.add(place)
    report(problems)
    return [pair for place, pair in enumerate(files) if place not in unfit], dict(deep)


def fault(
    files: PairFiles,
    large_size: tuple[int, int],
    small_size: tuple[int, int] | None,
    scale: int,
    least: int,
    split: str,
) -> Problem | None:
    """What is wrong with the sizes (width, height) of a pair, if anything.

    The large picture is cropped to multiples of S at its right and lower border; the small one must have exactly 1/S of
    that. Arguments as in `survey`.
    """
    has = _text(large_size)
    if min(large_size) < least:
        what = f"x{scale} patches of {least // scale} pixels need" if split == "train" else "the scores need"
        mend = "lower --data.patch.size or take it out" if split == "train" else "take it out"
        return Problem(
            "wrong size", files.large, f"is {has} (split {split}), but {what} {least}x{least} or more: {mend}"
        )
    wanted = (large_size[0] // scale, large_size[1] // scale)
    if small_size is None or small_size == wanted:
        return None
    assert files.small is not None
    text = (
        f"is {_text(small_size)} (split {split}), but 1/{scale} of {files.large}, {has}, is {_text(wanted)} (width x "
        "height): set --data.scale, or pair the right folders"
    )
    return Problem("wrong size", files.small, text)


def _header(path: Path) -> Header:
    """Of a file, without its pixels.

    Raises:
        BadFileError: it cannot be read.
    """
    try:
        with opened(path) as image:
            # not the method of PNG, which decodes the whole picture in search of a late chunk
            turned = Image.Image.getexif(image).get(0x0112, 1) in (5, 6, 7, 8)
            # RGB;16B, RGBA;16B and LA;16B come as modes of 8 bits
            deep = "I;16" if image.mode.startswith("I") else "RGB;16" if ";16" in samples_of(image).rawmode else ""
            return Header((image.height, image.width) if turned else image.size, DEEP.get(deep, ""))
    except BadFileError:
        return Header(read_image(path).size)  # which also tells a file that is missing or empty


def _text(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))
