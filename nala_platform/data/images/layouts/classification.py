"""The layouts of classification data sets, by name."""

from nala_platform.data.images.layouts.cifar import cifar10, cifar100
from nala_platform.data.images.layouts.class_folders import class_folders
from nala_platform.data.images.layouts.idx import emnist, idx
from nala_platform.data.images.layouts.imagenet import devkit, kaggle
from nala_platform.data.images.layouts.imagenet_found import imagenet
from nala_platform.data.images.layouts.listing import Layout, trained_on_all
from nala_platform.data.images.layouts.parquet_pictures import parquet
from nala_platform.data.images.layouts.shards import webdataset

LAYOUTS: dict[str, Layout] = {
    "folders": class_folders,
    "imagenet": imagenet,  # whichever of the next three and of folders is there
    "imagenet_devkit": devkit,
    "imagenet_kaggle": kaggle,
    "parquet": parquet,
    "webdataset": webdataset,
    "cifar10": cifar10,
    "cifar10_full": trained_on_all(cifar10),
    "cifar100": cifar100,
    "cifar100_full": trained_on_all(cifar100),
    "idx": idx,
    "idx_full": trained_on_all(idx),
    **{f"emnist_{split}": emnist(split) for split in ("balanced", "byclass", "bymerge", "digits", "letters", "mnist")},
}
