"""The layout ``cityscapes``: 19 classes of streets (Cordts et al. 2016, arXiv 1604.01685)."""

from pathlib import Path

from nala_platform.data.files import files_under
from nala_platform.data.images.labels import Labels
from nala_platform.data.images.layouts.masks import CHOOSES, Found, MaskedImage, by_name, inner_root, paired
from nala_platform.data.images.pictures import split_folder
from nala_platform.data.names import small_suffix
from nala_platform.data.problems import Excluded
from nala_platform.errors import UserError

IMAGE = "_leftImg8bit.png"
# class, its id in *_labelIds.png, its colour in papers; the order is that of *_labelTrainIds.png
CLASSES = (
    ("road", 7, (128, 64, 128)),
    ("sidewalk", 8, (244, 35, 232)),
    ("building", 11, (70, 70, 70)),
    ("wall", 12, (102, 102, 156)),
    ("fence", 13, (190, 153, 153)),
    ("pole", 17, (153, 153, 153)),
    ("traffic light", 19, (250, 170, 30)),
    ("traffic sign", 20, (220, 220, 0)),
    ("vegetation", 21, (107, 142, 35)),
    ("terrain", 22, (152, 251, 152)),
    ("sky", 23, (70, 130, 180)),
    ("person", 24, (220, 20, 60)),
    ("rider", 25, (255, 0, 0)),
    ("car", 26, (0, 0, 142)),
    ("truck", 27, (0, 0, 70)),
    ("bus", 28, (0, 60, 100)),
    ("train", 31, (0, 80, 100)),
    ("motorcycle", 32, (0, 0, 230)),
    ("bicycle", 33, (119, 11, 32)),
)
_NAMES = {"class_names": tuple(name for name, _, _ in CLASSES), "colors": tuple(colour for _, _, colour in CLASSES)}
# Every other id is ignored: void and rare classes, -1 (255 in a file of 8 bits, 65535 in one of 16), and the ids from
# 34 on that data sets annotated after this model have added.
KINDS: dict[str, Labels] = {
    "labelTrainIds": Labels(**_NAMES),
    "labelIds": Labels(**_NAMES, mapping={id_: label for label, (_, id_, _) in enumerate(CLASSES)}, unmapped="ignored"),
}
"""What the end of a mask's name says about its values; the first kind that is there is taken, for all splits."""


def cityscapes(root: Path, excluded: Excluded) -> Found:
    """``leftImg8bit/{train,val[,test]}/<city>/*_leftImg8bit.png``, ``gtFine/{train,val}/<city>/*_gtFine_<kind>.png``.

    ``root`` is the folder of both. Masks are of one kind in all splits: labelTrainIds where there is one, and then an
    image without one is reported; else labelIds. Papers report the validation split; the masks that come with
    ``gtFine/test`` are empty, and its images are what ``predict`` takes.

    Raises:
        UserError: a folder is missing, or there is no mask of either kind.
    """
    root = inner_root(root, "leftImg8bit", "cityscapes", "Cityscapes")
    masks = {split: files_under(split_folder(root, f"gtFine/{split}"), (".png",)) for split in ("train", "val")}
    names = [small_suffix(path.name) for paths in masks.values() for path in paths]
    kinds = [kind for kind in KINDS if any(name.endswith(_end(kind)) for name in names)]
    if not kinds:
        raise UserError(
            f"data.root: {root / 'gtFine'} has neither {' nor '.join(f'*{_end(kind)}' for kind in KINDS)} in train and "
            "val: unpack gtFine_trainvaltest.zip here"
        )
    kind = kinds[0]
    test = root / "leftImg8bit" / "test"
    return Found(
        {split: _pairs(root, split, paths, _end(kind), excluded) for split, paths in masks.items()},
        labels=KINDS[kind],
        unlabelled=test if test.is_dir() else None,
        protocol={"masks": f"gtFine, {kind}", "test split": f"val (the test labels are not published), {CHOOSES}"},
    )


def _pairs(root: Path, split: str, masks: list[Path], end: str, excluded: Excluded) -> list[MaskedImage]:
    folders = (split_folder(root, f"leftImg8bit/{split}"), root / "gtFine" / split)
    files = [
        by_name(
            [path for path in paths if small_suffix(path.name).endswith(end)],
            lambda path, folder=folder, end=end: small_suffix(path.relative_to(folder).as_posix()).removesuffix(end),
            excluded,
        )
        for paths, folder, end in zip((files_under(folders[0], (".png",)), masks), folders, (IMAGE, end), strict=True)
    ]
    partners = (f"mask *{end}", f"image *{IMAGE}")
    return paired(files[0], files[1], folders, lambda path: path.relative_to(root / "leftImg8bit").as_posix(), partners)


def _end(kind: str) -> str:
    return f"_gtFine_{kind}.png"
