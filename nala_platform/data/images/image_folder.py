"""Classification from the layouts that data sets are published in.

Shapes: N samples, C classes, H W pixels.
"""

from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from nala_platform.data.base import DataModule, Split
from nala_platform.data.files import check_folder
from nala_platform.data.images.image_views import Augment, Pixels, Transform, eval_transform, train_transform
from nala_platform.data.images.layouts.classification import LAYOUTS
from nala_platform.data.images.layouts.listing import LabelledPart, not_empty, with_validation
from nala_platform.data.images.pictures import PictureItems, as_bytes
from nala_platform.data.loader import Sample
from nala_platform.data.order import Draw, sample_seed, seeded
from nala_platform.data.problems import Excluded
from nala_platform.errors import look_up
from nala_platform.paths import StrPath, absolute

__all__ = ["Augment", "ImageFolderData", "PartItems", "Pixels"]


class ImageFolderData(DataModule):
    """Pictures with a class each, as they lie in ``root``; by default ``root/{train,val[,test]}/<class>/…``.

    Without a labelled test part, the validation part is tested, and `protocol` says so. Where a data set has no
    validation part, a fixed tenth of each class of train is held out for it. Order and augmentation follow
    ``seed_everything``.

    Args:
        root: the folder.
        layout: how the data set lies in it: a row of `LAYOUTS`.
        batch_size: of one process.
        num_workers: loader processes.
        pixels: size, resizing and normalisation.
        augment: what training does: order, repetition and change of the pictures.
        predict_path: a picture, or a folder of them, for ``predict``. ``None``: the pictures without labels where the
            layout has some, else the test part.
        exclude: a file that names, a line each, what is left out: see `Excluded`.

    Raises:
        UserError: folders or files are missing, damaged or disagree on the classes; a setting is out of range.
    """

    def __init__(
        self,
        root: StrPath,
        layout: str = "folders",
        batch_size: int = 64,
        num_workers: int = 0,
        pixels: Pixels = Pixels(),  # noqa: B008 - frozen
        augment: Augment = Augment(),  # noqa: B008 - frozen
        predict_path: StrPath | None = None,
        exclude: StrPath | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=batch_size,
            predict_batch_size=batch_size,
            num_workers=num_workers,
            seed=None,
        )
        self.root, self.layout = Path(root).expanduser(), layout
        self.size = pixels.height_width
        self.pixels, self.augment, self.predict_path = pixels, augment, predict_path
        self.crop = self.size
        self.mean, self.std, self.copies = pixels.mean, pixels.std, augment.copies
        self.train_transform, self.eval_transform = train_transform(pixels, augment), eval_transform(pixels)
        excluded = Excluded(exclude, self.root)
        self.excluded = len(excluded.paths)
        find = look_up(LAYOUTS, layout, option="data.layout")
        check_folder(self.root)
        self.listing = with_validation(find(self.root, excluded))
        not_empty(self.listing.parts, self.root)
        self.class_names = self.listing.class_names
        self.num_classes = len(self.class_names)
        if predict_path is not None:
            PictureItems(predict_path, self.eval_transform)  # found out now, not after the model has been built

    def items(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.items`."""
        if split == "train":
            return PartItems(self._part("train"), self.root, self.train_transform, seed=self.seed)
        unlabelled = self.predict_path or self.listing.unlabelled
        if split == "predict" and unlabelled is not None:
            return PictureItems(str(unlabelled), self.eval_transform)
        part = self._part("test" if split == "predict" else split)
        return PartItems(part, self.root, self.eval_transform, labelled=split != "predict")

    def whole(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.whole`; pictures are uint8."""
        return self.items(split) if split == "predict" else PartItems(self._part(split), self.root, as_bytes)

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        height, width = self.size
        parts = self.listing.parts
        return {
            "data": "labelled pictures",
            "layout": self.layout,
            "root": str(absolute(self.root)),
            "labels": self.listing.labels,
            **self.listing.notes,
            "test split": "test" if "test" in parts else "val (there is no test part with classes)",
            "images": {split: len(part) for split, part in parts.items()},
            "excluded": self.excluded,
            "classes": self.num_classes,
            "preprocessing": f"centre crop {height}x{width} at {self.pixels.crop_pct}, {self.pixels.interpolation}",
            "crop_pct": self.pixels.crop_pct,
            "interpolation": self.pixels.interpolation,
            "mean": list(self.mean),
            "std": list(self.std),
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """Top-1 of the commonest training class on the test split."""
        commonest = np.bincount(self._part("train").label_N).argmax()
        return {"majority class": {"top1": float((self._part("test").label_N == commonest).mean())}}

    def _part(self, split: str) -> LabelledPart:
        parts = self.listing.parts
        return parts["val" if split == "test" and "test" not in parts else split]


class PartItems(Dataset[Sample]):
    """Pictures of a part; with a seed, what the transform draws at random is a function of (seed, epoch, index, copy).

    Names are paths below the root.
    """

    def __init__(
        self, part: LabelledPart, root: Path, transform: Transform, *, seed: int | None = None, labelled: bool = True
    ) -> None:
        self.part, self.root, self.transform, self.seed, self.labelled = part, root, transform, seed, labelled

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, draw: Draw) -> Sample:
        image = self.part.read(draw.index)
        if self.seed is None:
            pixels = self.transform(image)
        else:
            with seeded(sample_seed(self.seed, draw)):
                pixels = self.transform(image)
        sample: Sample = {"image": pixels, "name": self.part.path(draw.index).relative_to(self.root).as_posix()}
        return sample | {"target": int(self.part.label_N[draw.index])} if self.labelled else sample
