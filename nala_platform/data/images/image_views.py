"""From a picture to what a classifier sees: how it is cut out, changed in training, and normalised.

Shapes: H W pixels.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

from PIL import Image
from timm.data.transforms_factory import create_transform
from torch import Tensor
from torchvision.transforms import Compose, RandomCrop

from nala_platform.data.base import IMAGENET_MEAN, IMAGENET_STD, Mean
from nala_platform.errors import UserError

Transform = Callable[[Image.Image], Tensor]
# timm passes over sections that it cannot read, such as one without its number
_RANDAUG = re.compile(r"[a-z0-9]+(-([a-su-z][a-z]*[0-9.]+|t[a-z0-9_]+))*")
_EXAMPLE = "for example rand-m9-mstd0.5-inc1, or none"

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]


@dataclass(frozen=True)
class Pixels:
    """How a picture becomes a tensor, in training and evaluation.

    Attributes:
        size: edge of the square that the network sees, or ``[height, width]``.
        crop_pct: evaluation enlarges so that the shorter side is ``image_size / crop_pct``, then crops the centre.
        interpolation: filter of all resizing.
        mean: of each channel, on the scale 0..1, that is subtracted.
        std: likewise, divided by.
    """

    size: int | tuple[int, int] = 224
    crop_pct: float = 0.875
    interpolation: Interpolation = "bicubic"
    mean: Mean = IMAGENET_MEAN
    std: Mean = IMAGENET_STD

    def __post_init__(self) -> None:
        if min(self.height_width) < 1:
            raise UserError(f"data.pixels.size is {self.size}: it must be 1 or more")
        if not 0 < self.crop_pct <= 1:
            raise UserError(f"data.pixels.crop_pct is {self.crop_pct}: it must be in (0, 1]")
        if min(self.std) <= 0:
            raise UserError(f"data.pixels.std is {self.std}: each value must be above 0")

    @property
    def height_width(self) -> tuple[int, int]:
        """Of what the network sees."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size


@dataclass(frozen=True)
class Augment:
    """How training draws pictures and what it does to them, in timm's words; evaluation does none of it.

    Attributes:
        randaug: timm's RandAugment, AugMix or AutoAugment string, or ``none``.
        color_jitter: strength of brightness, contrast and saturation; only without ``randaug``, or with its policy 3a.
        re_prob: probability of random erasing (with noise).
        scale: share of the picture's area that the random crop takes, from and to.
        ratio: of the crop's width to its height, from and to.
        hflip: probability of a left-right flip.
        vflip: probability of an upside-down flip.
        pad: above 0, the picture is resized as in evaluation at ``crop_pct`` 1, and the crop is a shift of it by up to
            so many pixels each way, black outside, as is usual for 32x32 pictures; ``scale`` and ``ratio`` do not act.
        copies: repeated augmentation (arXiv 1902.05509): an epoch shows each picture that it draws so many times, each
            time augmented anew, and so draws a part of them; it is as long as ever. 1 turns it off. See `TrainOrder`.
    """

    randaug: str = "rand-m9-mstd0.5-inc1"
    color_jitter: float = 0.0
    re_prob: float = 0.0
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (0.75, 1.3333)
    hflip: float = 0.5
    vflip: float = 0.0
    pad: int = 0
    copies: int = 1

    def __post_init__(self) -> None:
        for key in ("re_prob", "hflip", "vflip"):
            if not 0 <= getattr(self, key) <= 1:
                raise UserError(f"data.augment.{key} is {getattr(self, key)}: a probability lies in 0..1")
        if not 0 < self.scale[0] <= self.scale[1] or not 0 < self.ratio[0] <= self.ratio[1]:
            raise UserError(
                f"data.augment: scale {self.scale} and ratio {self.ratio} must be positive, the smaller first"
            )
        for key, value, least in (("pad", self.pad, 0), ("copies", self.copies, 1)):
            if value < least:
                raise UserError(f"data.augment.{key} is {value}: it must be {least} or more")
        if self.color_jitter < 0:
            raise UserError(f"data.augment.color_jitter is {self.color_jitter}: it must be 0 or more")
        if self.randaug == "none":
            return
        if not _RANDAUG.fullmatch(self.randaug):
            raise UserError(f"data.augment.randaug: timm does not know {self.randaug!r}; {_EXAMPLE}")
        if self.color_jitter and "3a" not in self.randaug:
            raise UserError(
                "data.augment.color_jitter does not act beside randaug: set randaug to none or the jitter to 0"
            )


def train_transform(pixels: Pixels, augment: Augment) -> Transform:
    """From an upright RGB picture to ``(3, H, W)`` float32, as training sees it; draws from the global generators.

    Raises:
        UserError: timm does not know the augmentation string.
    """
    try:
        transform = create_transform(
            (3, *pixels.height_width),
            is_training=True,
            scale=augment.scale,
            ratio=augment.ratio,
            hflip=augment.hflip,
            vflip=augment.vflip,
            color_jitter=augment.color_jitter or None,  # type: ignore[arg-type]
            auto_augment=None if augment.randaug == "none" else augment.randaug,
            interpolation=pixels.interpolation,
            mean=pixels.mean,
            std=pixels.std,
            re_prob=augment.re_prob,
            re_mode="pixel",
        )
    except (AssertionError, ValueError, IndexError) as error:
        raise UserError(f"data.augment.randaug: timm does not know {augment.randaug!r}; {_EXAMPLE}") from error
    assert isinstance(transform, Compose)
    if augment.pad:
        # timm's first step is the random resized crop
        whole = create_transform((3, *pixels.height_width), crop_pct=1.0, interpolation=pixels.interpolation)
        assert isinstance(whole, Compose)
        shifted = RandomCrop(pixels.height_width, padding=augment.pad)
        transform = Compose([*whole.transforms[:2], shifted, *transform.transforms[1:]])
    return cast(Transform, transform)


def eval_transform(pixels: Pixels) -> Transform:
    """From an upright RGB picture to ``(3, H, W)`` float32: enlarged, and cut out of the middle."""
    transform = create_transform(
        (3, *pixels.height_width),
        crop_pct=pixels.crop_pct,
        interpolation=pixels.interpolation,
        mean=pixels.mean,
        std=pixels.std,
    )
    return cast(Transform, transform)
