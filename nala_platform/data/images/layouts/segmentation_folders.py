"""The layout ``folders``: one's own images and masks."""

from pathlib import Path

from nala_platform.data.images.layouts.masks import Found, MaskedImage, by_name, paired
from nala_platform.data.images.pictures import pictures_under, split_folder
from nala_platform.data.problems import Excluded


def folders(root: Path, excluded: Excluded) -> Found:
    """``root/images/{train,val[,test]}`` and masks of the same names in ``root/annotations/{train,val[,test]}``.

    An image and its mask have the same path below the split's folder, but for the suffix. Images without masks in
    ``images/test`` are what ``predict`` takes.

    Raises:
        UserError: a folder is missing.
    """
    has_test = (root / "annotations" / "test").is_dir()
    splits = ("train", "val", "test") if has_test else ("train", "val")
    unlabelled = root / "images" / "test"
    return Found(
        {split: pairs_of_folders(root, split, excluded) for split in splits},
        labels=None,
        unlabelled=unlabelled if unlabelled.is_dir() else None,
        protocol={"test split": "test" if has_test else "val (there is no annotations/test)"},
    )


def pairs_of_folders(root: Path, split: str, excluded: Excluded) -> list[MaskedImage]:
    """The pairs of ``root/images/<split>`` and ``root/annotations/<split>``."""
    images, masks = (split_folder(root, f"{kind}/{split}") for kind in ("images", "annotations"))
    files = [
        by_name(
            pictures_under(folder),
            lambda path, folder=folder: path.relative_to(folder).with_suffix("").as_posix(),
            excluded,
        )
        for folder in (images, masks)
    ]
    return paired(files[0], files[1], (images, masks), lambda path: path.relative_to(root / "images").as_posix())
