"""The published layouts of images and masks, in one table."""

from collections.abc import Callable
from pathlib import Path

from nala_platform.data.layouts.ade20k import ade20k
from nala_platform.data.layouts.masks import Found
from nala_platform.data.layouts.segmentation_folders import folders
from nala_platform.data.problems import Excluded

LAYOUTS: dict[str, Callable[[Path, Excluded], Found]] = {
    "folders": folders,
    "ade20k": ade20k,
}
"""Name -> (root, the files that are left out) -> what is there."""
