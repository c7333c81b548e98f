"""Segmenting a picture of any size: as a whole or by sliding windows, at several scales, mirrored.

Shapes: B batch, C channels, Y X pixels of the picture, K classes, H W pixels of the labels, R rows of a strip.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nala_platform.errors import UserError

Network = Callable[[Tensor], Tensor]
STRIP = 128  # rows of labels that are compared at a time: all classes of a whole picture may not fit into memory


@dataclass(frozen=True)
class Inference:
    """How evaluation and prediction segment a picture; training sees crops and does none of it.

    Attributes:
        crop: edge of the sliding windows, or ``[height, width]``; ``None``: the picture goes through as a whole.
        stride: pixels from one window to the next, likewise; ``None``: two thirds of the crop.
        short_side: a picture is resized so that its shorter side has so many pixels; ``None``: its own size.
        scales: factors on that size; the classes' probabilities are averaged over them.
        flips: ``horizontal``: likewise over the picture and its mirror image, at each scale.
    """

    crop: int | tuple[int, int] | None = None
    stride: int | tuple[int, int] | None = None
    short_side: int | None = None
    scales: tuple[float, ...] = (1.0,)
    flips: Literal["none", "horizontal"] = "none"

    def __post_init__(self) -> None:
        if self.stride is not None and self.crop is None:
            raise UserError("model.inference.stride is given without a crop: only windows have a stride")
        for key in ("crop", "stride", "short_side"):
            value = getattr(self, key)
            if value is not None and min(_pair(value)) < 1:
                raise UserError(f"model.inference.{key} is {value}: it must be 1 or more")
        if self.crop is not None and any(step > edge for step, edge in zip(self.steps, self.window, strict=True)):
            raise UserError(
                f"model.inference.stride {self.stride} is larger than the crop {self.crop}: pixels would be left out"
            )
        if not self.scales or min(self.scales) <= 0:
            raise UserError(f"model.inference.scales is {self.scales}: give one or more, above 0")
        if self.flips not in ("none", "horizontal"):
            raise UserError(f"model.inference.flips is {self.flips!r}: it must be none or horizontal")

    @property
    def window(self) -> tuple[int, int]:
        """Height and width of a window; of pictures as wholes 0."""
        return (0, 0) if self.crop is None else _pair(self.crop)

    @property
    def steps(self) -> tuple[int, int]:
        """Down and across, from one window to the next."""
        if self.stride is not None:
            return _pair(self.stride)
        down, across = self.window
        return max(1, 2 * down // 3), max(1, 2 * across // 3)

    @property
    def views(self) -> list[tuple[float, bool]]:
        """Scale and whether mirrored, of each time that the network sees the picture."""
        return [(scale, flip) for scale in self.scales for flip in (False, True)[: 1 + (self.flips == "horizontal")]]

    def __str__(self) -> str:
        """As a paper states it."""
        size = "own size" if self.short_side is None else f"shorter side resized to {self.short_side}, bilinear"
        window, steps = ("x".join(map(str, pair)) for pair in (self.window, self.steps))
        how = "whole image" if self.crop is None else f"windows of {window} every {steps}, logits of overlaps averaged"
        scales = ", ".join(f"{scale:g}" for scale in self.scales)
        views = "" if len(self.views) == 1 else f"; probabilities averaged over scales {scales}, flips {self.flips}"
        return f"{how}; {size}{views}; resized to the labels' size, bilinear"


@torch.no_grad()
def segment(network: Network, image_BCYX: Tensor, inference: Inference, size: tuple[int, int]) -> Tensor:
    """Scores of the classes ``(B, K, ., .)`` float32 whose argmax is the prediction, for `strips` to bring to ``size``.

    Of one view: its logits, at the size at which the network saw the picture. Of several: the logarithm of the mean of
    their probabilities, at ``size``.
    """
    if len(inference.views) == 1:
        return _logits(network, image_BCYX, inference, *inference.views[0])
    total_BKHW = None
    for scale, flip in inference.views:
        scores_BKYX = _logits(network, image_BCYX, inference, scale, flip)
        if total_BKHW is None:
            total_BKHW = scores_BKYX.new_zeros((*scores_BKYX.shape[:2], *size))
        for rows, logits_BKRW in strips(scores_BKYX, size):
            total_BKHW[:, :, rows] += logits_BKRW.softmax(1)
    assert total_BKHW is not None
    return total_BKHW.div_(len(inference.views)).clamp_(min=torch.finfo(torch.float32).tiny).log_()


def strips(scores_BKYX: Tensor, size: tuple[int, int]) -> Iterator[tuple[slice, Tensor]]:
    """The scores at ``size``, bilinear, a few rows at a time: the rows and ``(B, K, R, W)``.

    Together they are ``F.interpolate(scores, size, mode="bilinear")`` to rounding; of that size already, the scores.
    """
    height, width = scores_BKYX.shape[-2:]
    # the same coordinates as with align_corners=False: centres of pixels, held within the outermost ones
    place_H = ((torch.arange(size[0], dtype=torch.float64) + 0.5) * (height / size[0]) - 0.5).clamp(0, height - 1)
    above_H = place_H.floor().long()
    weight_H = (place_H - above_H).float().to(scores_BKYX.device)
    below_H = (above_H + 1).clamp(max=height - 1)
    for first in range(0, size[0], STRIP):
        rows = slice(first, min(first + STRIP, size[0]))
        if (height, width) == size:
            yield rows, scores_BKYX[:, :, rows]
            continue
        above, below = (scores_BKYX[:, :, place[rows].to(scores_BKYX.device)] for place in (above_H, below_H))
        strip = torch.lerp(above, below, weight_H[rows, None])
        yield rows, F.interpolate(strip, (strip.shape[2], size[1]), mode="bilinear", align_corners=False)


def _logits(network: Network, image_BCYX: Tensor, inference: Inference, scale: float, flip: bool) -> Tensor:
    """Of one view, mirrored back."""
    edges = image_BCYX.shape[-2:]
    factor = scale * (1.0 if inference.short_side is None else inference.short_side / min(edges))
    size = (max(1, round(edges[0] * factor)), max(1, round(edges[1] * factor)))
    if size != tuple(edges):
        # with antialiasing, as the training views are made
        image_BCYX = F.interpolate(image_BCYX, size, mode="bilinear", align_corners=False, antialias=True)
    logits_BKYX = slide(network, image_BCYX.flip(-1) if flip else image_BCYX, inference.window, inference.steps)
    return logits_BKYX.flip(-1) if flip else logits_BKYX


@torch.no_grad()
def slide(network: Network, image_BCYX: Tensor, crop: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Logits ``(B, K, Y, X)`` float32: the mean over all windows that a pixel lies in.

    One window is in memory at a time. An image that fits into one goes through as a whole, so the result is the
    network's own to the bit; a crop of zeros means no windows.
    """
    height, width = image_BCYX.shape[-2:]
    if not any(crop):
        return network(image_BCYX).float()
    rows, columns = window_starts(height, crop[0], stride[0]), window_starts(width, crop[1], stride[1])
    if len(rows) == len(columns) == 1:
        return network(image_BCYX).float()
    total_BKYX = None
    for top in rows:
        for left in columns:
            place = (..., slice(top, top + crop[0]), slice(left, left + crop[1]))
            logits = network(image_BCYX[place]).float()
            if total_BKYX is None:
                total_BKYX = logits.new_zeros((*logits.shape[:2], height, width))
            total_BKYX[place] += logits
    assert total_BKYX is not None
    return total_BKYX.div_(
        (_covered(rows, crop[0], height)[:, None] * _covered(columns, crop[1], width)).to(total_BKYX)
    )


def window_starts(length: int, crop: int, stride: int) -> list[int]:
    """First pixels of windows of ``crop`` pixels, every ``stride``; the last one is moved back to end with the image.

    Examples:
        >>> [window_starts(size, 64, 40) for size in (100, 104, 105, 50)]
        [[0, 36], [0, 40], [0, 40, 41], [0]]
    """
    if length <= crop:
        return [0]
    return [min(first, length - crop) for first in range(0, length - crop + stride, stride)]


def _covered(starts: list[int], crop: int, length: int) -> Tensor:
    """How many windows each pixel lies in."""
    count_L = torch.zeros(length)
    for first in starts:
        count_L[first : first + crop] += 1
    return count_L


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value
