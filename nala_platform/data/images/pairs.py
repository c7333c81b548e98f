"""Pairs of a picture and a smaller version of it: patches to train on, whole pictures to judge by.

Shapes: H W pixels of the large picture, S scale, P edge of a patch in the small one.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from nala_platform.data.base import Split
from nala_platform.data.images.pictures import PictureItems, normalised
from nala_platform.data.loader import Sample
from nala_platform.data.order import Draw, sample_seed
from nala_platform.errors import UserError
from nala_platform.paths import StrPath

SCALES = (2, 3, 4)
MEAN, STD = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)  # pixels stay in 0..1: the network's enlargement adds to them
LEAST_TILE = 33  # more than two overlaps of 16

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Patch:
    """What training sees of a picture; evaluation sees it whole, or in tiles.

    Attributes:
        size: P, edge of the square in the small picture; the large one's is S times that.
        repeats: squares of each picture an epoch.
        turns: whether each is flipped, upside down too, and transposed, with probability one half each.
        tile: edge, in small pixels, of the squares that evaluation and prediction cut a picture into, to bound their
            memory; ``None``: pictures go through as wholes.
    """

    size: int = 48
    repeats: int = 16
    turns: bool = True
    tile: int | None = None

    def __post_init__(self) -> None:
        for key in ("size", "repeats"):
            if getattr(self, key) < 1:
                raise UserError(f"data.patch.{key} is {getattr(self, key)}: it must be 1 or more")
        if self.tile is not None and self.tile < LEAST_TILE:
            raise UserError(
                f"data.patch.tile is {self.tile}: it must be {LEAST_TILE} pixels or more (neighbours overlap by 16)"
            )


class Pair(NamedTuple):
    """A large picture, its name, the small one where it is not to be made, and the test set where there are some."""

    name: str
    large: Image.Image
    small: Image.Image | None = None
    part: int | None = None


def cropped(image: Image.Image, scale: int) -> Image.Image:
    """The upper left part whose sides are multiples of the scale."""
    width, height = image.width // scale * scale, image.height // scale * scale
    return image if (width, height) == image.size else image.crop((0, 0, width, height))


def shrunk(image: Image.Image, scale: int, box: Box | None = None) -> Image.Image:
    """1/S of the size by Pillow's bicubic filter, which takes S times as wide a neighbourhood (antialiased), in 8 bits.

    Args:
        image: sides are multiples of S.
        scale: S.
        box: left, top, right, bottom in the small picture, of which only that part is made: from the same pixels,
            so equal to the part cut out of the whole.
    """
    left, top, right, bottom = box or (0, 0, image.width // scale, image.height // scale)
    source = (scale * left, scale * top, scale * right, scale * bottom)
    return image.resize((right - left, bottom - top), Image.Resampling.BICUBIC, box=source)


class PairItems(Dataset[Sample]):
    """``image`` and ``target`` float32 in 0..1, ``(3, h, w)`` and ``(3, S h, S w)``, ``name``, of some ``test_set``.

    With a ``patch``, item i shows picture ``i // repeats`` in a square and a position that (seed, epoch, i) determine;
    without, whole pictures, cropped to multiples of the scale.

    Args:
        load: the i-th pair.
        count: how many there are.
        scale: S.
        patch: of training, or ``None``.
        seed: of the patches.
        labelled: whether there is a ``target``.
    """

    def __init__(
        self,
        load: Callable[[int], Pair],
        count: int,
        *,
        scale: int,
        patch: Patch | None = None,
        seed: int = 0,
        labelled: bool = True,
    ) -> None:
        self.load, self.count, self.scale, self.patch, self.seed = load, count, scale, patch, seed
        self.labelled = labelled

    def __len__(self) -> int:
        return self.count * (self.patch.repeats if self.patch else 1)

    def __getitem__(self, draw: Draw) -> Sample:
        name, large, small, part = self.load(draw.index // (self.patch.repeats if self.patch else 1))
        large = cropped(large, self.scale)
        if self.patch is not None:
            return {**self._view(large, small, self.patch, sample_seed(self.seed, draw)), "name": name}
        sample: dict[str, Any] = {"image": pixels(small or shrunk(large, self.scale)), "name": name}
        if self.labelled:
            sample["target"] = pixels(large)
            if part is not None:
                sample["test_set"] = part
        return sample

    def _view(self, large: Image.Image, small: Image.Image | None, patch: Patch, seed: int) -> dict[str, Tensor]:
        scale, size, draw = self.scale, patch.size, random.Random(seed)
        width, height = large.width // scale, large.height // scale
        left, top = draw.randrange(width - size + 1), draw.randrange(height - size + 1)
        box = (left, top, left + size, top + size)
        code = draw.randrange(8) if patch.turns else 0
        return {
            "image": turned(pixels(small.crop(box) if small else shrunk(large, scale, box)), code),
            "target": turned(pixels(large.crop(tuple(scale * edge for edge in box))), code),  # type: ignore[arg-type]
        }


class Views:
    """The data sets of all splits of a module of pairs, which differ in where pairs come from alone.

    Args:
        scale: S, 2, 3 or 4.
        patch: what training sees.
        seed: of the patches.
        predict_path: a picture, or a folder of them, to be enlarged by ``predict``; ``None``: the small test pictures.

    Raises:
        UserError: a scale that no network has, or no picture at ``predict_path``.
    """

    def __init__(self, scale: int, patch: Patch, seed: int, predict_path: StrPath | None) -> None:
        if scale not in SCALES:
            raise UserError(f"data.scale is {scale}: it must be one of {', '.join(map(str, SCALES))}")
        self.scale, self.patch, self.seed, self.predict_path = scale, patch, seed, predict_path
        if predict_path is not None:
            PictureItems(predict_path, pixels)  # found out now, not after the model has been built

    def items(self, split: Split, load: Callable[[int], Pair], count: int) -> Dataset[Sample]:
        """What a split's loader reads, of the ``count`` pairs that ``load`` gives."""
        if split == "train":
            return PairItems(load, count, scale=self.scale, patch=self.patch, seed=self.seed)
        if split == "predict" and self.predict_path is not None:
            items: Dataset[Sample] = PictureItems(self.predict_path, pixels)
        else:
            items = self.whole(load, count, labelled=split != "predict")
        return items if self.patch.tile is None else Tiled(items, self.patch.tile)

    def whole(self, load: Callable[[int], Pair], count: int, labelled: bool = True) -> Dataset[Sample]:
        """Whole pictures."""
        return PairItems(load, count, scale=self.scale, labelled=labelled)

    def protocol(self) -> dict[str, Any]:
        """The lines that say how pictures are scaled and how they go through the network."""
        tile = self.patch.tile
        inference = "whole pictures" if tile is None else f"tiles of {tile} low-resolution pixels"
        return {"scale": self.scale, "inference": inference}


class Tiled(Dataset[Sample]):
    """The same samples with ``tile``: the task is told with each into how large squares to cut it."""

    def __init__(self, items: Dataset[Sample], tile: int) -> None:
        self.items, self.tile = items, tile

    def __len__(self) -> int:
        return len(self.items)  # type: ignore[arg-type]

    def __getitem__(self, draw: Draw) -> Sample:
        return {**self.items[draw], "tile": self.tile}


def pixels(image: Image.Image) -> Tensor:
    """``(3, H, W)`` float32 in 0..1 of an RGB picture."""
    return normalised(np.asarray(image), MEAN, STD)


def turned(image_3HW: Tensor, code: int) -> Tensor:
    """One of the eight symmetries of the square: bit 0 flips left to right, bit 1 upside down, bit 2 transposes."""
    flipped = torch.flip(image_3HW, [axis for bit, axis in ((1, -1), (2, -2)) if code & bit])
    return (flipped.mT if code & 4 else flipped).contiguous()
