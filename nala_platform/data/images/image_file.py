"""Reading pictures and masks as people have them on disk, and saying in one line what is wrong with one.

One orientation policy for both kinds: the EXIF orientation that a file carries is applied to that file. A mask drawn on
a rotated photograph thus fits it, and one drawn on the unrotated pixels is found out by its size (not, though, when the
rotation is by 180 degrees or the picture is square: no size tells that).

Shapes: H W pixels.
"""

import hashlib
import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from nala_platform.data.problems import BadFileError, Problem, gathering

ColorMap = tuple[tuple[int, int, int], ...]

_DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N")
# Pillow spreads grey PNGs of 2 and 4 bits over 0..255; a label is the value before that
_SPREAD = {"L;2": 85, "L;4": 17}
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)


class Opened(NamedTuple):
    """A picture or mask that has been opened.

    Attributes:
        path: of its file.
        digest: of the file's bytes; empty of one that is missing or empty.
        height: upright; 0 of one that cannot be read.
        width: likewise.
    """

    path: Path
    digest: bytes = b""
    height: int = 0
    width: int = 0


_watched: ContextVar[list[Opened] | None] = ContextVar("watched", default=None)


def watching() -> AbstractContextManager[list[Opened]]:
    """Within it, each file that is read here is added to the list that is given."""
    return gathering(_watched)


def read_image(path: Path, data: bytes | None = None) -> Image.Image:
    """A picture as 8-bit RGB, upright.

    Grey, palette and CMYK pictures are converted; transparency is laid over white; 16-bit grey is divided by 257; of
    several frames the first is taken.

    Args:
        path: the file.
        data: its bytes, where it is no file of its own but lies in an archive; ``path`` is its name then.

    Raises:
        BadFileError: the file is missing, empty, truncated, no picture, or holds floating-point pixels.
    """
    with _opened(path, data) as image:
        if image.mode == "F":
            raise _bad(
                "wrong mode", path, "floating-point pixels have no fixed range: save the picture with 8 or 16 bits"
            )
        if image.mode in _DEEP:
            deep_HW = np.clip(np.asarray(image).astype(np.int64), 0, 65535)
            return Image.fromarray((deep_HW // 257).astype(np.uint8)).convert("RGB")
        if image.has_transparency_data:
            clear = image.convert("RGBA")
            return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
        return image.convert("RGB")


def read_indices(path: Path, color_map: ColorMap = ()) -> np.ndarray:
    """A mask as stored indices ``(H, W)`` int32, upright.

    Grey and palette files are read as indices, black-and-white ones as 0 and 1; colours need a ``color_map``, whose
    i-th colour stands for index i.

    Raises:
        BadFileError: the file is missing, empty, truncated, no picture, lossy (JPEG), coloured without a colour map, or
            holds a colour that is not in it.
    """
    with _opened(path) as image:
        if image.format in ("JPEG", "MPO"):
            raise _bad("wrong mode", path, "JPEG blurs the labels of a mask: save masks as PNG")
        if image.mode in ("1", "L", "P", *_DEEP):
            index_HW = np.asarray(image).astype(np.int64)
            if index_HW.min() < 0 or index_HW.max() > 65535:
                worst = f"index {index_HW.min()} or {index_HW.max()}"
                raise _bad("wrong label", path, f"{worst} is outside 0..65535: store class indices")
            return index_HW.astype(np.int32) // image.info["spread"]
        if image.mode not in ("RGB", "RGBA"):
            text = f"a mask of mode {image.mode} has no indices: save it as a grey or palette PNG"
            raise _bad("wrong mode", path, text)
        if not color_map:
            raise _bad(
                "wrong mode",
                path,
                f"the mask is in colours (mode {image.mode}), not class indices: tell the colour of each class "
                "with data.labels.color_map, or save it as a grey or palette PNG of indices",
            )
        return _indices_of_colours(np.asarray(image.convert("RGB")), color_map, path)


@contextmanager
def _opened(path: Path, data: bytes | None = None) -> Iterator[Image.Image]:
    """The picture, loaded and upright; what Pillow raises on the way becomes one line."""
    seen = _watched.get()
    if seen is not None:
        seen.append(Opened(path))
    if data is None and not path.is_file():
        raise _bad("missing", path, "no such file")
    if not (path.stat().st_size if data is None else data):
        raise _bad("empty", path, "the file is empty (0 bytes): copy it again or delete it")
    if seen is not None:
        data = path.read_bytes() if data is None else data
        seen[-1] = Opened(path, hashlib.blake2b(data, digest_size=16).digest())
    try:
        with Image.open(path if data is None else io.BytesIO(data)) as image:
            stored = image.tile[0][3] if image.format == "PNG" and image.tile else None
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            image.info["spread"] = _SPREAD.get(str(stored), 1)
            if seen is not None:
                seen[-1] = seen[-1]._replace(height=image.height, width=image.width)
            yield image
    except BadFileError:
        raise
    except UnidentifiedImageError as error:
        raise _bad("unreadable", path, "not a picture that Pillow knows: replace or delete it") from error
    except _BROKEN as error:
        reason = " ".join(str(error).split())
        raise _bad("unreadable", path, f"cannot be read ({reason}): copy it again or delete it") from error


def _bad(kind: str, path: Path, text: str) -> BadFileError:
    return BadFileError(Problem(kind, path, text))


def _indices_of_colours(colour_HW3: np.ndarray, color_map: ColorMap, path: Path) -> np.ndarray:
    known_C = _packed(np.array(color_map))
    by_colour = np.argsort(known_C)
    packed_HW = _packed(colour_HW3)
    place_HW = np.searchsorted(known_C, packed_HW, sorter=by_colour).clip(max=len(known_C) - 1)
    index_HW = by_colour[place_HW].astype(np.int32)
    strange_HW = known_C[index_HW] != packed_HW
    if strange_HW.any():
        colour = tuple(int(value) for value in colour_HW3[strange_HW][0])
        raise _bad(
            "wrong label",
            path,
            f"colour {colour} ({strange_HW.sum()} pixels of such colours) is not in data.labels.color_map: "
            "add it, or draw the mask without blended edges",
        )
    return index_HW


def _packed(colour_X3: np.ndarray) -> np.ndarray:
    return (colour_X3.astype(np.int64) << (16, 8, 0)).sum(-1)
