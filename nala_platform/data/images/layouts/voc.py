"""The layouts ``voc2012`` and ``voc2012_aug``: 20 objects and background (Everingham et al., PASCAL VOC 2012)."""

from pathlib import Path

from nala_platform.data.images.labels import Labels
from nala_platform.data.images.layouts.listed import listed_pairs, read_names
from nala_platform.data.images.layouts.masks import CHOOSES, Found, inner_root
from nala_platform.data.names import Lookup
from nala_platform.data.problems import Excluded
from nala_platform.errors import UserError

CLASSES = (
    "background aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person "
    "pottedplant sheep sofa train tvmonitor"
).split()
AUGMENTED = ("train_aug", "trainaug")  # names of the list, by whom it was made


def palette_colour(index: int) -> tuple[int, int, int]:
    """The colour of an index in VOC's palette: bit j of red, green, blue, from the highest, is bit 3j, 3j+1, 3j+2.

    Examples:
        >>> palette_colour(1), palette_colour(20)
        ((128, 0, 0), (0, 64, 128))
    """
    red, green, blue = (sum((index >> (3 * j + channel) & 1) << (7 - j) for j in range(8)) for channel in range(3))
    return red, green, blue


LABELS = Labels(class_names=tuple(CLASSES), colors=tuple(palette_colour(index) for index in range(len(CLASSES))))


def voc2012(root: Path, excluded: Excluded) -> Found:
    """``JPEGImages``, ``SegmentationClass``, ``ImageSets/Segmentation/{train,val}.txt``; 255 is the void outline.

    ``root`` is ``VOC2012`` or a folder around it: ``VOCdevkit``, or the one that holds that. Papers report val.

    Raises:
        UserError: a folder or list is missing, or an image is in both lists.
    """
    return _voc(root, excluded, "train")


def voc2012_aug(root: Path, excluded: Excluded) -> Found:
    """As `voc2012`, but trained on the 10,582 images that SBD adds labels to (Hariharan et al. 2011).

    Their masks are in ``SegmentationClassAug``, those that are not there in ``SegmentationClass``; the list is
    ``ImageSets/Segmentation/train_aug.txt`` or ``trainaug.txt``, names alone or pairs of paths. Validation stays VOC's.

    Raises:
        UserError: as `voc2012`; SBD's own split of train and val overlaps VOC's val.
    """
    root = _root(root)
    train = next((name for name in AUGMENTED if (_list(root, name)).is_file()), None)
    if train is None or not (root / "SegmentationClassAug").is_dir():
        lists = " or ".join(_list(root, name).name for name in AUGMENTED)
        raise UserError(
            f"data.layout voc2012_aug needs {root}/SegmentationClassAug and, in ImageSets/Segmentation, {lists}: SBD's "
            "masks as PNG; --data.layout voc2012 does without"
        )
    return _voc(root, excluded, train)


def _voc(root: Path, excluded: Excluded, train: str) -> Found:
    root = _root(root)
    names = {"train": read_names(_list(root, train)), "val": read_names(_list(root, "val"))}
    both = sorted(set(names["train"]) & set(names["val"]))
    if both:
        raise UserError(
            f"{_list(root, train)} names {len(both)} images of val.txt ({', '.join(both[:5])}): a network trained on "
            "them cannot be validated on them; take them out of the list"
        )

    lookup = Lookup()

    def places(name: str, split: str) -> tuple[Path, Path]:
        added = root / "SegmentationClassAug" / f"{name}.png"
        is_added = split == "train" and train != "train" and bool(lookup.find(added))
        return root / "JPEGImages" / f"{name}.jpg", added if is_added else root / "SegmentationClass" / f"{name}.png"

    lists = {"train": _list(root, train), "val": _list(root, "val")}
    return Found(
        {
            split: listed_pairs(names[split], lambda name, split=split: places(name, split), excluded, lists[split])
            for split in names
        },
        labels=LABELS,
        unlabelled=None,
        protocol={"training list": f"{train}.txt", "test split": f"val (the test labels are not published), {CHOOSES}"},
    )


def _root(root: Path) -> Path:
    return inner_root(root, "ImageSets/Segmentation", "VOC2012", "VOCdevkit/VOC2012")


def _list(root: Path, name: str) -> Path:
    return root / "ImageSets" / "Segmentation" / f"{name}.txt"
