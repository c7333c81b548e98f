"""ImageNet-1K in whichever of its layouts is there."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nala_platform.data.images.layouts.class_folders import class_folders
from nala_platform.data.images.layouts.imagenet import devkit, kaggle
from nala_platform.data.images.layouts.listing import Layout, Listing
from nala_platform.data.images.layouts.parquet_pictures import parquet
from nala_platform.data.images.layouts.shards import webdataset
from nala_platform.data.images.pictures import SUFFIXES
from nala_platform.data.problems import Excluded
from nala_platform.errors import UserError


def _has_class_folders(root: Path) -> bool:
    return (root / "train").is_dir() and any(path.is_dir() for path in (root / "val").glob("[!.]*"))


def _has_flat_val(root: Path) -> bool:
    return (root / "train").is_dir() and any(path.suffix.lower() in SUFFIXES for path in (root / "val").glob("[!.]*"))


def _has_kaggles_tree(root: Path) -> bool:
    return any((root / inside).is_dir() for inside in ("ILSVRC/Data/CLS-LOC", "Data/CLS-LOC"))


def _has_parquet(root: Path) -> bool:
    return any(any((root / folder).glob("*.parquet")) for folder in (".", "data"))


def _has_shards(root: Path) -> bool:
    # the archives that the pictures are published in are no shards: ILSVRC2012_img_train.tar, n01440764.tar
    tars = [path.name for pattern in ("*.tar", "*/*.tar") for path in root.glob(pattern)]
    return any(not name.startswith(("ILSVRC", "n0", "n1")) for name in tars)


SIGNS: dict[str, tuple[Callable[[Path], bool], Layout]] = {
    "folders": (_has_class_folders, class_folders),
    "imagenet_devkit": (_has_flat_val, devkit),
    "imagenet_kaggle": (_has_kaggles_tree, kaggle),
    "parquet": (_has_parquet, parquet),
    "webdataset": (_has_shards, webdataset),
}


def imagenet(root: Path, excluded: Excluded) -> Listing:
    """The layout whose signs are there, as its own function reads it; the protocol says which.

    Raises:
        UserError: there is none, or more than one.
    """
    there = [name for name, (is_there, _) in SIGNS.items() if is_there(root)]
    if len(there) > 1:
        raise UserError(f"data.root: {root} looks like {' and '.join(there)}: say --data.layout {there[0]}, or another")
    if not there:
        names = ", ".join(sorted(path.name for path in root.iterdir())[:8]) or "nothing"
        raise UserError(
            f"data.root: {root} is no ImageNet that is known (there: {names}): wanted are train/<wnid> with val/<wnid> "
            "or a flat val and ILSVRC2012_devkit_t12; Kaggle's ILSVRC; .parquet files; WebDataset's .tar shards"
        )
    found = SIGNS[there[0]][1](root, excluded)
    return replace(found, notes={"found": there[0]} | found.notes)
