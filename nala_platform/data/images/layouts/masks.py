"""What every layout of images and masks is made of: files by name, pairs, and what is missing."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from nala_platform.data.files import check_folder
from nala_platform.data.images.labels import Labels
from nala_platform.data.images.pictures import SUFFIXES
from nala_platform.data.names import clash, composed
from nala_platform.data.problems import Excluded, Problem, report
from nala_platform.errors import UserError

CHOOSES = "which also chooses the best checkpoint"  # of a test split that is the validation split


class MaskedImage(NamedTuple):
    """An image and its mask; ``name`` is what the image is called in results."""

    image: Path
    mask: Path
    name: str


class Found(NamedTuple):
    """What a layout has found below its root.

    Attributes:
        pairs: of ``train``, ``val`` and, where the data has a labelled one, ``test``.
        labels: what the masks' values mean; ``None``: the user has to say.
        unlabelled: folder of images without masks that ``predict`` takes when nothing is said; ``None``: those of the
            test split, or of validation without one.
        protocol: what a result on this data has to state beside counts and labels.
    """

    pairs: dict[str, list[MaskedImage]]
    labels: Labels | None
    unlabelled: Path | None
    protocol: dict[str, str]


class ByName(NamedTuple):
    """Files by what pairs them, and the names that the user leaves out."""

    kept: dict[str, Path]
    left_out: set[str]


def by_name(paths: Iterable[Path], name: Callable[[Path], str], excluded: Excluded) -> ByName:
    """Files by their ``name``, in composed letters; of two with one name the first is kept, the other reported."""
    kept: dict[str, Path] = {}
    left_out: set[str] = set()
    problems = []
    for path in paths:
        key = composed(name(path))
        if path in excluded:
            left_out.add(key)
        elif key in kept:
            problems.append(Problem("unpaired", path, clash(kept[key], path)))
        else:
            kept[key] = path
    report(problems)
    return ByName(kept, left_out - kept.keys())


def paired(
    images: ByName,
    masks: ByName,
    folders: tuple[Path, Path],
    named: Callable[[Path], str],
    partners: tuple[str, str] = ("mask", "image"),
) -> list[MaskedImage]:
    """Images and masks of the same names, sorted; what has no partner, or a folder that is empty, is reported.

    Args:
        images: those of a split.
        masks: likewise.
        folders: where the images and the masks are looked for.
        named: gives `MaskedImage.name` of an image's path.
        partners: what an image lacks that has no mask, and a mask that has no image, for the message.
    """
    names = (images.kept.keys() | masks.kept.keys()) - images.left_out - masks.left_out
    for files, folder in zip((images, masks), folders, strict=True):
        if not files.kept and not files.left_out:
            report([Problem("empty", folder, f"holds no picture ({' '.join(SUFFIXES)})")])
            return []
    problems = [
        Problem("unpaired", files.kept[name], f"has no {partner} of the same name in {folder}")
        for files, others, partner, folder in (
            (images, masks, partners[0], folders[1]),
            (masks, images, partners[1], folders[0]),
        )
        for name in sorted(names & files.kept.keys() - others.kept.keys())
    ]
    report(problems)
    return [
        MaskedImage(images.kept[name], masks.kept[name], named(images.kept[name]))
        for name in sorted(names & images.kept.keys() & masks.kept.keys())
    ]


def inner_root(root: Path, marker: str, *inner: str) -> Path:
    """``root``, or the folder in it that people unpack an archive to, whichever holds ``marker``.

    Raises:
        UserError: none does; the message says what is there.
    """
    check_folder(root)
    for folder in (root, *(root / name for name in inner)):
        if (folder / marker).exists():
            return folder
    there = ", ".join(sorted(path.name for path in root.iterdir())[:8]) or "nothing"
    wanted = " nor ".join((marker, *(f"{name}/{marker}" for name in inner)))
    raise UserError(f"data.root: {root} has no {wanted} (there: {there})")
