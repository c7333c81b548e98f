"""Upscaling an image square by square, where the whole does not fit into memory.

Shapes: B batch, C channels, H W pixels of the low-resolution image, S scale, T edge of a tile.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from nala_platform.errors import UserError

OVERLAP = 16  # low-resolution pixels that neighbours share at least
MARGIN = 4  # of these, at a tile's inner edge, that are thrown away; over the rest one tile fades into the other


def upscale_tiled(network: Callable[[Tensor], Tensor], image_BCHW: Tensor, *, scale: int, tile: int) -> Tensor:
    """``network`` applied to overlapping squares of at most ``tile`` pixels, joined: ``(B, C, S H, S W)`` float32.

    Neighbouring tiles share 16 pixels or more: the 4 at a tile's inner edge are thrown away, over the 8 next to them
    its weight rises linearly to one. An image that fits in one tile goes through as a whole. So a network that looks 4
    pixels far gives what it gives on the whole image; one with global attention sees a tile's statistics in place of
    the image's.

    Raises:
        UserError: a tile that is not larger than two overlaps.
    """
    if tile <= 2 * OVERLAP:
        raise UserError(f"data.patch.tile is {tile}: it must be more than {2 * OVERLAP} pixels, two overlaps")
    batch, channels, height, width = image_BCHW.shape
    if height <= tile and width <= tile:
        return network(image_BCHW).float()
    total = image_BCHW.new_zeros((batch, channels, scale * height, scale * width), dtype=torch.float32)
    weights = total.new_zeros((1, 1, scale * height, scale * width))
    for top, bottom in windows(height, tile):
        for left, right in windows(width, tile):
            part = network(image_BCHW[..., top:bottom, left:right]).float()
            down, across = _ramp(top, bottom, height, scale), _ramp(left, right, width, scale)
            weight = (down[:, None] * across).to(part)
            place = (..., slice(scale * top, scale * bottom), slice(scale * left, scale * right))
            total[place] += part * weight
            weights[place] += weight
    return total / weights


def windows(length: int, tile: int) -> list[tuple[int, int]]:
    """First and last (exclusive) pixels of the fewest equal windows that cover ``length`` and overlap enough.

    Examples:
        >>> windows(100, 64), windows(50, 64)
        ([(0, 64), (36, 100)], [(0, 50)])
    """
    if length <= tile:
        return [(0, length)]
    count = -(-(length - OVERLAP) // (tile - OVERLAP))
    firsts = [round(index * (length - tile) / (count - 1)) for index in range(count)]
    return [(first, first + tile) for first in firsts]


def _ramp(first: int, last: int, length: int, scale: int) -> Tensor:
    """Weights ``(S T,)`` of a window's pixels along one axis; no ramp where the window ends with the image."""
    distance = (torch.arange(scale * (last - first)) + 0.5) / scale
    rising = ((distance - MARGIN) / (OVERLAP - 2 * MARGIN)).clamp(0, 1)
    start = rising if first > 0 else torch.ones_like(rising)
    return start * rising.flip(0) if last < length else start
