"""The layouts of classification data sets, by name."""

from nala_platform.data.layouts.class_folders import class_folders
from nala_platform.data.layouts.imagenet import devkit, kaggle
from nala_platform.data.layouts.listing import Layout

LAYOUTS: dict[str, Layout] = {
    "folders": class_folders,
    "imagenet_devkit": devkit,
    "imagenet_kaggle": kaggle,
}
