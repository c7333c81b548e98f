"""The published layouts of images and masks, in one table."""

from collections.abc import Callable
from pathlib import Path

from nala_platform.data.images.layouts.ade20k import ade20k
from nala_platform.data.images.layouts.cityscapes import cityscapes
from nala_platform.data.images.layouts.masks import Found
from nala_platform.data.images.layouts.pets import pets
from nala_platform.data.images.layouts.segmentation_folders import folders
from nala_platform.data.images.layouts.voc import voc2012, voc2012_aug
from nala_platform.data.problems import Excluded

LAYOUTS: dict[str, Callable[[Path, Excluded], Found]] = {
    "folders": folders,
    "ade20k": ade20k,
    "cityscapes": cityscapes,
    "voc2012": voc2012,
    "voc2012_aug": voc2012_aug,
    "pets": pets,
}
"""Name -> (root, the files that are left out) -> what is there."""
