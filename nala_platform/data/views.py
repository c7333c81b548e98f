"""Random views of an image and its mask: one geometry for both.

Shapes: H W pixels of the image, T U of the crop.
"""

import random
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad
from torchvision.transforms import ColorJitter

from nala_platform.data.order import seeded
from nala_platform.data.pictures import normalised
from nala_platform.errors import UserError


@dataclass(frozen=True)
class View:
    """What training does to an image and its mask; evaluation does none of it.

    Attributes:
        crop: edge of the square that the network sees, or ``[height, width]``.
        scale: factor of a random resizing before the crop, from and to.
        hflip: probability of a left-right flip.
        vflip: probability of an upside-down flip.
        color_jitter: strength of brightness, contrast and saturation, on the image alone; 0 for none.
    """

    crop: int | tuple[int, int] = 512
    scale: tuple[float, float] = (0.5, 2.0)
    hflip: float = 0.5
    vflip: float = 0.0
    color_jitter: float = 0.0

    def __post_init__(self) -> None:
        for key in ("hflip", "vflip"):
            if not 0 <= getattr(self, key) <= 1:
                raise UserError(f"data.augment.{key} is {getattr(self, key)}: a probability lies in 0..1")
        if min(self.size) < 1:
            raise UserError(f"data.augment.crop is {self.crop}: it must be 1 or more")
        if not 0 < self.scale[0] <= self.scale[1]:
            raise UserError(f"data.augment.scale is {self.scale}: it must be positive, the smaller first")
        if self.color_jitter < 0:
            raise UserError(f"data.augment.color_jitter is {self.color_jitter}: it must be 0 or more")

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the crop."""
        return (self.crop, self.crop) if isinstance(self.crop, int) else self.crop


@dataclass(frozen=True)
class Normalisation:
    """What pixels are normalised with, and what fills a crop beyond the picture: mean colour and an ignored label."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    ignore_index: int


def random_view(
    image: Image.Image, target_HW: np.ndarray, view: View, fill: Normalisation, seed: int
) -> tuple[Tensor, Tensor]:
    """A random view: scaled (image bilinear, mask nearest neighbour), cropped, flipped; jittered in colour.

    Args:
        image: RGB, H x W.
        target_HW: (H, W) int64 labels.
        view: the ranges.
        fill: see `Normalisation`.
        seed: everything random here is a function of it.

    Returns:
        ``(3, T, U)`` float32 and ``(T, U)`` int64.
    """
    draw = random.Random(seed)
    factor = draw.uniform(*view.scale)
    height, width = (max(1, round(edge * factor)) for edge in target_HW.shape)
    box = [_window(edge, crop, draw) for edge, crop in zip((height, width), view.size, strict=True)]
    (top, bottom), (left, right) = box
    # only the part that the crop shows is resized, from the same places that the whole would have been
    down, across = target_HW.shape[0] / height, target_HW.shape[1] / width
    part = (left * across, top * down, right * across, bottom * down)
    shown = (right - left, bottom - top)
    image = image.resize(shown, Image.Resampling.BILINEAR, box=part)
    target_TU = _nearest(target_HW, (top, bottom, down), (left, right, across))
    if view.color_jitter:
        with seeded(seed):
            image = ColorJitter(view.color_jitter, view.color_jitter, view.color_jitter)(image)
    image_3TU = normalised(np.asarray(image), fill.mean, fill.std)
    flipped = [axis for axis, chance in ((-1, view.hflip), (-2, view.vflip)) if draw.random() < chance]
    missing = (0, view.size[1] - shown[0], 0, view.size[0] - shown[1])
    image_3TU = pad(image_3TU.flip(flipped), missing)
    return image_3TU, pad(torch.from_numpy(target_TU).flip(flipped), missing, value=fill.ignore_index)


def _window(edge: int, crop: int, draw: random.Random) -> tuple[int, int]:
    first = draw.randint(0, max(0, edge - crop))
    return first, min(edge, first + crop)


def _nearest(target_HW: np.ndarray, rows: tuple[int, int, float], columns: tuple[int, int, float]) -> np.ndarray:
    """The labels at the pixel centres of a resized window: (first, last, source pixels a pixel) down and across."""
    places = [
        np.minimum(((np.arange(first, last) + 0.5) * step).astype(np.int64), edge - 1)
        for (first, last, step), edge in zip((rows, columns), target_HW.shape, strict=True)
    ]
    return target_HW[places[0]][:, places[1]]
