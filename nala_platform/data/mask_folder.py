"""Segmentation from a folder of images and a folder of masks.

Shapes: H W pixels.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from nala_platform.data.base import DataModule, Split
from nala_platform.data.image_file import read_image, read_indices
from nala_platform.data.labels import FOREGROUND_255, Labels, foreground_at_255
from nala_platform.data.loader import Sample
from nala_platform.data.order import Draw, sample_seed
from nala_platform.data.pictures import SUFFIXES, PictureItems, normalised, pictures_under, split_folder
from nala_platform.data.views import Normalisation, View, random_view
from nala_platform.errors import UserError

SURVEYED = 16  # masks of each split that are read before training starts


class Pair(NamedTuple):
    """An image and its mask."""

    image: Path
    mask: Path


class MaskFolderData(DataModule):
    """Images in ``root/images/{train,val[,test]}``, masks of the same names in ``root/annotations/{train,val[,test]}``.

    An image and its mask have the same path below the split's folder, but for the suffix. Training sees random views;
    evaluation sees whole images at their own size. Without ``annotations/test``, the validation split is the test
    split, and `protocol` says so; images without masks in ``images/test`` are still what ``predict`` predicts.

    Every mask is checked when it is read, and some of each split here.

    Args:
        root: the folder.
        labels: what the values in the masks mean.
        batch_size: of one process, in training.
        eval_batch_size: of one process, in evaluation; above 1 only where all images have the same size.
        num_workers: loader processes.
        seed: of order and augmentation; None is the run's, ``seed_everything``.
        augment: of the training images.
        predict_path: an image, or a folder of them, for ``predict``. ``None`` predicts the test split.

    Raises:
        UserError: folders or partners are missing, or a mask is wrong.
    """

    def __init__(
        self,
        root: str,
        labels: Labels,
        batch_size: int = 8,
        eval_batch_size: int = 1,
        num_workers: int = 0,
        seed: int | None = None,
        augment: View = View(),  # noqa: B008 - frozen
        predict_path: str | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            predict_batch_size=1,
            num_workers=num_workers,
            seed=seed,
        )
        self.root, self.labels, self.augment = Path(root).expanduser(), labels, augment
        self.num_classes, self.class_names = labels.num_classes, labels.class_names
        self.ignore_index, self.palette = labels.ignore_index, labels.palette()
        self.pairs = {"train": _pairs(self.root, "train"), "val": _pairs(self.root, "val")}
        if (self.root / "annotations" / "test").is_dir():
            self.pairs["test"] = _pairs(self.root, "test")
        folder = self.root / "images" / "test"
        self.predict_path = predict_path or str(folder if folder.is_dir() else self.root / "images" / "val")
        PictureItems(self.predict_path, self._whole)  # found out now, not after the model has been built
        self.void_is_255 = _survey(self.pairs, labels)

    def items(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.items`."""
        if split == "predict":
            return PictureItems(self.predict_path, self._whole)
        pairs = self.pairs[self._test_folder() if split == "test" else split]
        view = self.augment if split == "train" else None
        return PairItems(pairs, self._reader(), self._fill(), seed=self.seed, view=view)

    def whole(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.whole`."""
        if split != "train":
            return self.items(split)
        return PairItems(self.pairs["train"], self._reader(), self._fill(), seed=self.seed, view=None)

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        return {
            "data": "image and mask folders",
            "root": str(self.root),
            "test split": "test" if "test" in self.pairs else "val (there is no annotations/test)",
            "images": {split: len(pairs) for split, pairs in self.pairs.items()},
            "classes": self.num_classes,
            "preprocessing": "whole images at their own size",
            "ignore_index": self.ignore_index,
            "reduce_zero_label": self.labels.reduce_zero_label,
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """None: they would need a pass over all masks."""
        return {}

    def _test_folder(self) -> str:
        return "test" if "test" in self.pairs else "val"

    def _reader(self) -> "PairReader":
        return PairReader(self.root, self.labels, refuse_255=not self.void_is_255 and self.num_classes == 2)

    def _fill(self) -> Normalisation:
        return Normalisation(self.mean, self.std, self.ignore_index)

    def _whole(self, image: Image.Image) -> Tensor:
        return normalised(np.asarray(image), self.mean, self.std)


class PairReader:
    """Reads an image and its labels and checks that they fit.

    Args:
        root: names are given below it.
        labels: what the values in the masks mean.
        refuse_255: whether a mask of 0 and 255 alone is taken for a foreground stored as 255.
    """

    def __init__(self, root: Path, labels: Labels, refuse_255: bool) -> None:
        self.root, self.labels, self.refuse_255 = root, labels, refuse_255

    def read(self, pair: Pair) -> tuple[Image.Image, np.ndarray]:
        """The picture, RGB, and its labels ``(H, W)`` int64.

        Raises:
            UserError: a file cannot be read, the sizes differ, or the mask holds a wrong value.
        """
        image, stored_HW = read_image(pair.image), read_indices(pair.mask, self.labels.color_map)
        if stored_HW.shape != (image.height, image.width):
            raise UserError(
                f"{pair.mask}: the mask is {stored_HW.shape[0]}x{stored_HW.shape[1]}, but its image {pair.image} is "
                f"{image.height}x{image.width} (height x width, after the EXIF rotation of each): draw the mask on the "
                "image as it is shown"
            )
        if self.refuse_255 and foreground_at_255(_values(stored_HW)):
            raise UserError(f"{pair.mask}: {FOREGROUND_255}")
        return image, self.labels.trained(stored_HW, str(pair.mask))


class PairItems(Dataset[Sample]):
    """Images with masks: random views as (seed, epoch, index) say, or, without a ``view``, whole."""

    def __init__(
        self, pairs: list[Pair], reader: PairReader, fill: Normalisation, *, seed: int, view: View | None
    ) -> None:
        self.pairs, self.reader, self.fill, self.seed, self.view = pairs, reader, fill, seed, view

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, draw: Draw) -> Sample:
        pair = self.pairs[draw.index]
        image, target_HW = self.reader.read(pair)
        name = pair.image.relative_to(self.reader.root / "images").as_posix()
        if self.view is None:
            pixels = normalised(np.asarray(image), self.fill.mean, self.fill.std)
            return {"image": pixels, "target": torch.from_numpy(target_HW), "name": name}
        pixels, target = random_view(image, target_HW, self.view, self.fill, sample_seed(self.seed, draw))
        return {"image": pixels, "target": target, "name": name}


def _pairs(root: Path, split: str) -> list[Pair]:
    """The images of a split with their masks, sorted by name."""
    images = _by_stem(split_folder(root, f"images/{split}"))
    masks = _by_stem(split_folder(root, f"annotations/{split}"))
    problems = [
        f"{len(lonely)} of {len(all_)} {kind} without {partner} of the same name ({', '.join(sorted(lonely)[:5])})"
        for all_, kind, lonely, partner in (
            (images, "images", images.keys() - masks.keys(), "a mask"),
            (masks, "masks", masks.keys() - images.keys(), "an image"),
        )
        if lonely
    ]
    if problems:
        raise UserError(f"{root}, split {split}: {' and '.join(problems)}")
    return [Pair(images[stem], masks[stem]) for stem in sorted(images)]


def _by_stem(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in pictures_under(folder):
        stem = path.relative_to(folder).with_suffix("").as_posix()
        if stem in found:
            raise UserError(
                f"{folder}: {found[stem].name} and {path.name} have the same name but for the suffix: keep one"
            )
        found[stem] = path
    if not found:
        raise UserError(f"{folder} holds no picture ({' '.join(SUFFIXES)})")
    return found


def _survey(pairs: dict[str, list[Pair]], labels: Labels) -> bool:
    """Check some masks of each split; whether 255 stands beside a class other than 0 in one, so surely means "ignored".

    Raises:
        UserError: a mask is wrong, or none of those read holds another label than 0 and 255.
    """
    surveyed = []
    for part in pairs.values():
        for place in sorted({round(place) for place in np.linspace(0, len(part) - 1, SURVEYED)}):
            stored_HW = read_indices(part[place].mask, labels.color_map)
            labels.trained(stored_HW, str(part[place].mask))
            surveyed.append(_values(stored_HW))
    suspects = [values for values in surveyed if foreground_at_255(values)]
    if suspects and all(values <= {0, 255} for values in surveyed):
        raise UserError(f"{next(iter(pairs.values()))[0].mask.parent}: {FOREGROUND_255}")
    return any(255 in values and values - {0, 255} for values in surveyed)


def _values(stored_HW: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.bincount(stored_HW.ravel())).tolist())
