"""Handwritten digits: the embedded data of the task ``cls``.

Shapes: N samples, H W pixels, P pixels of padding.
"""

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from nala_platform.data.base import DataModule, Mean, Split
from nala_platform.data.images.baselines import digits_baselines
from nala_platform.data.images.pictures import PictureItems
from nala_platform.data.images.samples import Digits, digits
from nala_platform.data.loader import Sample
from nala_platform.data.order import Draw, sample_seed
from nala_platform.errors import UserError
from nala_platform.paths import StrPath

# of the training part
MEAN, STD = 0.3089, 0.3485


class DigitsData(DataModule):
    """scikit-learn's digits at 32x32, grey as three equal channels, ten classes.

    In training each image is shifted by up to ``shift`` pixels each way; there are no flips.

    Args:
        batch_size: of one process.
        num_workers: loader processes.
        seed: of order and augmentation; None is the run's, ``seed_everything``.
        shift: pixels of the 32x32 image, 0..31.
        predict_path: a picture, or a folder of them, for ``predict``: light strokes on black, made grey and 32x32;
            ``None``: the test split.
    """

    num_classes = 10
    class_names = tuple("0123456789")
    mean: Mean = (MEAN, MEAN, MEAN)
    std: Mean = (STD, STD, STD)

    def __init__(
        self,
        batch_size: int = 64,
        num_workers: int = 0,
        seed: int | None = None,
        shift: int = 1,
        predict_path: StrPath | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=batch_size,
            predict_batch_size=batch_size,
            num_workers=num_workers,
            seed=seed,
        )
        if not 0 <= shift < 32:
            raise UserError(f"data.shift is {shift}: it must be 0..31 pixels")
        self.shift = shift
        self.predict_path = predict_path

    def items(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.items`."""
        if split != "predict":
            return DigitItems(digits()[split], self.seed, shift=self.shift if split == "train" else 0, labelled=True)
        if self.predict_path is None:
            return DigitItems(digits()["test"], self.seed, shift=0, labelled=False)
        return PictureItems(self.predict_path, _as_digit)

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        return {
            "data": "digits",
            "source": "scikit-learn load_digits, 8x8 enlarged to 32x32 (bicubic)",
            "split": "stratified 70/10/20, seed 0",
            "images": {part: len(data.target_N) for part, data in digits().items()},
            "preprocessing": "whole image, 32x32",
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """See `DataModule.baselines`."""
        return digits_baselines()


class DigitItems(Dataset[Sample]):
    """A part of the digits, shifted as (seed, epoch, index) say; what moves in from outside is black."""

    def __init__(self, part: Digits, seed: int, *, shift: int, labelled: bool) -> None:
        image_NHW = (torch.from_numpy(part.image_NHW).float() / 255 - MEAN) / STD
        self.padded_NHW = pad(image_NHW, (shift,) * 4, value=-MEAN / STD)
        self.part, self.seed, self.shift, self.labelled = part, seed, shift, labelled

    def __len__(self) -> int:
        return len(self.padded_NHW)

    def __getitem__(self, draw: Draw) -> Sample:
        places = 2 * self.shift + 1
        down, right = divmod(sample_seed(self.seed, draw) % places**2, places)
        image_HW = self.padded_NHW[draw.index, down : down + 32, right : right + 32]
        sample = {"image": image_HW.expand(3, -1, -1), "name": f"digit{self.part.index_N[draw.index]:04d}"}
        return sample | {"target": int(self.part.target_N[draw.index])} if self.labelled else sample


def _as_digit(image: Image.Image) -> Tensor:
    grey = image.convert("L").resize((32, 32), Image.Resampling.BICUBIC)
    return ((torch.from_numpy(np.array(grey)).float() / 255 - MEAN) / STD).expand(3, -1, -1)
