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

from nala_platform.data.images.pictures import normalised
from nala_platform.data.order import seeded
from nala_platform.errors import UserError

CROPS = 10  # that are tried for one that no class fills


@dataclass(frozen=True)
class View:
    """What training does to an image and its mask; evaluation does none of it.

    Attributes:
        crop: edge of the square that the network sees, or ``[height, width]``.
        scale: factor of a random resizing before the crop, from and to.
        hflip: probability of a left-right flip.
        vflip: probability of an upside-down flip.
        color_jitter: strength of brightness, contrast and saturation, on the image alone; 0 for none.
        distortion: probability of each change of `distorted`, on the image alone.
        short_side: the image is first brought to this shorter side, on which ``scale`` then acts; ``None``: its own.
        cat_max_ratio: share of a crop's counted pixels that one class may have: of up to 10 crops, the first below it
            is taken, else the last; 1 takes any.
    """

    crop: int | tuple[int, int] = 512
    scale: tuple[float, float] = (0.5, 2.0)
    hflip: float = 0.5
    vflip: float = 0.0
    color_jitter: float = 0.0
    distortion: float = 0.0
    short_side: int | None = None
    cat_max_ratio: float = 1.0

    def __post_init__(self) -> None:
        for key in ("hflip", "vflip", "distortion"):
            if not 0 <= getattr(self, key) <= 1:
                raise UserError(f"data.augment.{key} is {getattr(self, key)}: a probability lies in 0..1")
        if min(self.size) < 1:
            raise UserError(f"data.augment.crop is {self.crop}: it must be 1 or more")
        if not 0 < self.scale[0] <= self.scale[1]:
            raise UserError(f"data.augment.scale is {self.scale}: it must be positive, the smaller first")
        if self.color_jitter < 0:
            raise UserError(f"data.augment.color_jitter is {self.color_jitter}: it must be 0 or more")
        if self.color_jitter and self.distortion:
            raise UserError("data.augment: color_jitter and distortion both change the colours: give one of them")
        if self.short_side is not None and self.short_side < 1:
            raise UserError(f"data.augment.short_side is {self.short_side}: it must be 1 or more")
        if not 0 < self.cat_max_ratio <= 1:
            raise UserError(f"data.augment.cat_max_ratio is {self.cat_max_ratio}: it must be in (0, 1]")

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
    """A random view: scaled (image bilinear, mask nearest neighbour), cropped, flipped; changed in colour.

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
    part, target_TU = _part(target_HW, view, fill.ignore_index, draw)
    shown = (target_TU.shape[1], target_TU.shape[0])
    image = image.resize(shown, Image.Resampling.BILINEAR, box=part)
    if view.color_jitter:
        with seeded(seed):
            image = ColorJitter(view.color_jitter, view.color_jitter, view.color_jitter)(image)
    pixels_TU3 = np.asarray(image)
    if view.distortion:
        pixels_TU3 = distorted(pixels_TU3, view.distortion, draw)
    image_3TU = normalised(pixels_TU3, fill.mean, fill.std)
    flipped = [axis for axis, chance in ((-1, view.hflip), (-2, view.vflip)) if draw.random() < chance]
    missing = (0, view.size[1] - shown[0], 0, view.size[0] - shown[1])
    image_3TU = pad(image_3TU.flip(flipped), missing)
    return image_3TU, pad(torch.from_numpy(target_TU).flip(flipped), missing, value=fill.ignore_index)


def distorted(pixels_TU3: np.ndarray, chance: float, draw: random.Random) -> np.ndarray:
    """The photometric distortion of SSD (Liu et al. 2016, arXiv 1512.02325), on uint8 pixels ``(T, U, 3)``.

    Each with probability ``chance``: brightness, up to 32 of 255 added or taken away; contrast, times 0.5 to 1.5,
    before or after saturation, times 0.5 to 1.5, and hue, turned by up to a tenth of the circle. Results are clipped.
    """
    before = draw.random() < 0.5

    def drawn(low: float, high: float) -> float | None:
        value = draw.uniform(low, high)
        return value if draw.random() < chance else None

    shift, gain, vivid, turn = drawn(-32, 32), drawn(0.5, 1.5), drawn(0.5, 1.5), drawn(-0.1, 0.1)
    if shift is not None:
        pixels_TU3 = _clipped(pixels_TU3 + np.float32(shift))
    if gain is not None and before:
        pixels_TU3 = _clipped(pixels_TU3 * np.float32(gain))
    if vivid is not None or turn is not None:
        hsv_TU3 = np.array(Image.fromarray(pixels_TU3).convert("HSV"))
        hsv_TU3[..., 0] += np.uint8(round((turn or 0.0) * 256) % 256)  # a circle of 256 steps
        hsv_TU3[..., 1] = _clipped(hsv_TU3[..., 1] * np.float32(1.0 if vivid is None else vivid))
        pixels_TU3 = np.asarray(Image.fromarray(hsv_TU3, "HSV").convert("RGB"))
    if gain is not None and not before:
        pixels_TU3 = _clipped(pixels_TU3 * np.float32(gain))
    return pixels_TU3


def _clipped(values: np.ndarray) -> np.ndarray:
    return values.round().clip(0, 255).astype(np.uint8)


def _part(
    target_HW: np.ndarray, view: View, ignored: int, draw: random.Random
) -> tuple[tuple[float, float, float, float], np.ndarray]:
    """A random part of the image, (left, top, right, bottom) in its own pixels, and its labels at the crop's size."""
    factor = draw.uniform(*view.scale)
    if view.short_side is not None:
        factor *= view.short_side / min(target_HW.shape)
    height, width = (max(1, round(edge * factor)) for edge in target_HW.shape)
    # only the part that the crop shows is resized, from the same places that the whole would have been
    down, across = target_HW.shape[0] / height, target_HW.shape[1] / width
    for _ in range(CROPS if view.cat_max_ratio < 1 else 1):
        box = [_window(edge, crop, draw) for edge, crop in zip((height, width), view.size, strict=True)]
        (top, bottom), (left, right) = box
        target_TU = _nearest(target_HW, (top, bottom, down), (left, right, across))
        if view.cat_max_ratio == 1 or _is_mixed(target_TU, view.cat_max_ratio, ignored):
            break
    return (left * across, top * down, right * across, bottom * down), target_TU


def _is_mixed(target_TU: np.ndarray, most: float, ignored: int) -> bool:
    """Whether no class has ``most`` of the counted pixels or more."""
    _, counts = np.unique(target_TU[target_TU != ignored], return_counts=True)
    return len(counts) > 1 and counts.max() < most * counts.sum()


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
