"""Segmentation from images and masks on disk.

Shapes: H W pixels.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from nala_platform.data.base import DataModule, Split
from nala_platform.data.images.image_file import read_image, read_indices
from nala_platform.data.images.labels import FOREGROUND_255, Labels, foreground_at_255
from nala_platform.data.images.layouts.masks import MaskedImage
from nala_platform.data.images.layouts.segmentation import LAYOUTS
from nala_platform.data.images.pictures import PictureItems, normalised, pictures_under
from nala_platform.data.images.views import Normalisation, View, random_view
from nala_platform.data.loader import Sample
from nala_platform.data.order import Draw, sample_seed
from nala_platform.data.problems import BadFileError, Excluded, Problem, report
from nala_platform.errors import UserError, look_up
from nala_platform.paths import StrPath, shown

SURVEYED = 16  # masks of each split that are read before training starts


class MaskFolderData(DataModule):
    """Images and masks on disk, in a published layout or one's own.

    Training sees random views; evaluation sees whole images at their own size, one at a time. Without labels for a test
    split, the validation split is the test split, and `protocol` says so. Every mask is checked when it is read, and
    some of each split here. Order and augmentation follow ``seed_everything``.

    Args:
        root: the folder.
        labels: what the values in the masks mean; ``None``: what the layout says. With the layout ``folders``, needed.
        layout: how the files lie in the folder, a name in `LAYOUTS`.
        batch_size: of one process, in training.
        num_workers: loader processes.
        augment: of the training images.
        predict_path: an image, or a folder of them, for ``predict``; ``None``: the layout's images without masks, or
            those of the test split.
        exclude: a list of files to leave out, each with its partner: see `Excluded`.

    Raises:
        UserError: folders or partners are missing, or a mask is wrong.
    """

    def __init__(
        self,
        root: StrPath,
        labels: Labels | None = None,
        layout: str = "folders",
        batch_size: int = 8,
        num_workers: int = 0,
        augment: View = View(),  # noqa: B008 - frozen
        predict_path: StrPath | None = None,
        exclude: StrPath | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size, eval_batch_size=1, predict_batch_size=1, num_workers=num_workers, seed=None
        )
        self.root, self.layout, self.augment = Path(root).expanduser(), layout, augment
        self.crop = augment.size if augment.short_side is None else None  # else no picture is small
        self.excluded = Excluded(exclude, self.root)
        self.found = look_up(LAYOUTS, layout, option="data.layout")(self.root, self.excluded)
        self.labels = _told(labels or self.found.labels, layout)
        self.num_classes, self.class_names = self.labels.num_classes, self.labels.class_names
        self.ignore_index, self.palette = self.labels.ignore_index, self.labels.palette()
        self.pairs = self.found.pairs
        own = self.found.unlabelled
        self.predict_path = predict_path or (str(own) if own is not None and pictures_under(own) else None)
        if self.predict_path is not None:
            PictureItems(self.predict_path, self._whole)  # found out now, not after the model has been built
        if note := self.labels.untrained():
            print(f"nala: note: {note}", file=sys.stderr)
        # with more than 255 classes, 255 is one of them
        is_known = bool(self.labels.mapping) or self.labels is self.found.labels or self.num_classes > 255
        self.void_is_255 = _survey(self.pairs, self.labels, refuse_255=not is_known) or is_known

    def items(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.items`."""
        if split == "predict" and self.predict_path is not None:
            return PictureItems(self.predict_path, self._whole)
        pairs = self.pairs[split if split in self.pairs else "val"]
        if split == "predict":
            return Unmasked(self.pairs.get("test", pairs), self._whole)
        view = self.augment if split == "train" else None
        return MaskedImageItems(pairs, self._reader(), self._fill(), seed=self.seed, view=view)

    def whole(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.whole`."""
        if split != "train":
            return self.items(split)
        return MaskedImageItems(self.pairs["train"], self._reader(), self._fill(), seed=self.seed, view=None)

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        return {
            "data": "images and masks",
            "layout": self.layout,
            "root": shown(self.root),
            **self.found.protocol,
            "images": {split: len(pairs) for split, pairs in self.pairs.items()},
            "excluded": len(self.excluded.paths),
            "classes": self.num_classes,
            "preprocessing": "whole images at their own size",
            "labels": str(self.labels),
            "ignore_index": self.ignore_index,
            "reduce_zero_label": self.labels.reduce_zero_label,
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """None: they would need a pass over all masks."""
        return {}

    def _reader(self) -> "MaskedImageReader":
        return MaskedImageReader(self.labels, refuse_255=not self.void_is_255 and self.num_classes == 2)

    def _fill(self) -> Normalisation:
        return Normalisation(self.mean, self.std, self.ignore_index)

    def _whole(self, image: Image.Image) -> Tensor:
        return normalised(np.asarray(image), self.mean, self.std)


class MaskedImageReader:
    """Reads an image and its labels and checks that they fit.

    Args:
        labels: what the values in the masks mean.
        refuse_255: whether a mask of 0 and 255 alone is taken for a foreground stored as 255.
    """

    def __init__(self, labels: Labels, refuse_255: bool) -> None:
        self.labels, self.refuse_255 = labels, refuse_255

    def read(self, pair: MaskedImage) -> tuple[Image.Image, np.ndarray]:
        """The picture, RGB, and its labels ``(H, W)`` int64.

        Raises:
            BadFileError: a file cannot be read, the sizes differ, or the mask holds a wrong value.
        """
        image, stored_HW = read_image(pair.image), read_indices(pair.mask, self.labels.color_map)
        if stored_HW.shape != (image.height, image.width):
            text = (
                f"the mask is {stored_HW.shape[0]}x{stored_HW.shape[1]}, but its image {pair.image} is "
                f"{image.height}x{image.width} (height x width, after the EXIF rotation of each): draw the mask on the "
                "image as it is shown"
            )
            raise BadFileError(Problem("wrong size", pair.mask, text))
        if self.refuse_255 and foreground_at_255(_values(stored_HW)):
            raise BadFileError(Problem("wrong label", pair.mask, FOREGROUND_255))
        return image, self.labels.trained(stored_HW, str(pair.mask))


class MaskedImageItems(Dataset[Sample]):
    """Images with masks: random views as (seed, epoch, index) say, or, without a ``view``, whole."""

    def __init__(
        self, pairs: list[MaskedImage], reader: MaskedImageReader, fill: Normalisation, *, seed: int, view: View | None
    ) -> None:
        self.pairs, self.reader, self.fill, self.seed, self.view = pairs, reader, fill, seed, view

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, draw: Draw) -> Sample:
        pair = self.pairs[draw.index]
        image, target_HW = self.reader.read(pair)
        if self.view is None:
            pixels = normalised(np.asarray(image), self.fill.mean, self.fill.std)
            return {"image": pixels, "target": torch.from_numpy(target_HW), "name": pair.name}
        pixels, target = random_view(image, target_HW, self.view, self.fill, sample_seed(self.seed, draw))
        return {"image": pixels, "target": target, "name": pair.name}


class Unmasked(Dataset[Sample]):
    """The images alone of a split: ``image`` and ``name``."""

    def __init__(self, pairs: list[MaskedImage], transform: Callable[[Image.Image], Tensor]) -> None:
        self.pairs, self.transform = pairs, transform

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, draw: Draw) -> Sample:
        pair = self.pairs[draw.index]
        return {"image": self.transform(read_image(pair.image)), "name": pair.name}


def _told(labels: Labels | None, layout: str) -> Labels:
    if labels is None:
        raise UserError(
            f"the layout {layout!r} does not say what the masks' values mean: give --data.labels.num_classes or "
            "--data.labels.class_names"
        )
    return labels


def _survey(pairs: dict[str, list[MaskedImage]], labels: Labels, *, refuse_255: bool) -> bool:
    """Check some masks of each split; whether 255 stands beside a class other than 0 in one, so surely means "ignored".

    Raises:
        UserError: a mask is wrong; or, with ``refuse_255``, none of those read holds another label than 0 and 255.
    """
    surveyed, problems = [], []
    for part in filter(None, pairs.values()):
        for place in sorted({round(place) for place in np.linspace(0, len(part) - 1, SURVEYED)}):
            try:
                stored_HW = read_indices(part[place].mask, labels.color_map)
                labels.trained(stored_HW, str(part[place].mask))
                surveyed.append(_values(stored_HW))
            except BadFileError as error:
                problems.append(error.problem)
    report(problems)
    suspects = [values for values in surveyed if foreground_at_255(values)]
    if suspects and refuse_255 and all(values <= {0, 255} for values in surveyed):
        folder = next(part[0].mask.parent for part in pairs.values() if part)
        report([Problem("wrong label", folder, FOREGROUND_255)])
    return any(255 in values and values - {0, 255} for values in surveyed)


def _values(stored_HW: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.bincount(stored_HW.ravel())).tolist())
