"""Upscaling an image square by square, where the whole does not fit into memory.

Shapes: B batch, C channels, H W pixels of the low-resolution image, S scale, T edge of a tile.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from nala_platform.errors import UserError

OVERLAP = 16  # low-resolution pixels that neighbours share at least, over which one fades into the other


def upscale_tiled(network: Callable[[Tensor], Tensor], image_BCHW: Tensor, *, scale: int, tile: int) -> Tensor:
    """``network`` applied to overlapping squares of at most ``tile`` pixels, joined: ``(B, C, S H, S W)`` float32.

    Neighbouring tiles share 16 pixels or more, over which their weights ramp linearly. An image that fits in one tile
    goes through as a whole. A network that looks no farther than a few pixels gives what it gives on the whole image,
    but for those pixels; one with global attention sees a tile's statistics in place of the image's.

    Raises:
        UserError: a tile that is not larger than two overlaps.
    """
    if tile <= 2 * OVERLAP:
        raise UserError(f"data.tile is {tile}: it must be more than {2 * OVERLAP} pixels, two overlaps")
    batch, channels, height, width = image_BCHW.shape
    if height <= tile and width <= tile:
        return network(image_BCHW).float()
    total = image_BCHW.new_zeros((batch, channels, scale * height, scale * width), dtype=torch.float32)
    weights = total.new_zeros((1, 1, scale * height, scale * width))
    for top, bottom in windows(height, tile):
        for left, right in windows(width, tile):
            part = network(image_BCHW[..., top:bottom, left:right]).float()
            weight = _ramp(part.shape[-2], scale, part)[:, None] * _ramp(part.shape[-1], scale, part)
            place = (..., slice(scale * top, scale * bottom), slice(scale * left, scale * right))
            total[place] += part * weight
            weights[place] += weight
    return total / weights


def windows(length: int, tile: int) -> list[tuple[int, int]]:
    """First and last (exclusive) pixels of the fewest equal windows that cover ``length`` and overlap enough.

    >>> windows(100, 64), windows(50, 64)
    ([(0, 64), (36, 100)], [(0, 50)])
    """
    if length <= tile:
        return [(0, length)]
    count = -(-(length - OVERLAP) // (tile - OVERLAP))
    firsts = [round(index * (length - tile) / (count - 1)) for index in range(count)]
    return [(first, first + tile) for first in firsts]


def _ramp(length: int, scale: int, like: Tensor) -> Tensor:
    """Weights ``(S T,)`` that rise over the overlap from each end; at the image's border they cancel out."""
    distance = torch.arange(length, device=like.device, dtype=like.dtype) + 0.5
    return torch.minimum(distance, distance.flip(0)).clamp(max=OVERLAP * scale)
