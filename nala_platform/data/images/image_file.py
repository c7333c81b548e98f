"""Reading pictures and masks as people have them on disk, and saying in one line what is wrong with one.

One orientation policy for both kinds: the EXIF orientation that a file carries is applied to that file. A mask drawn on
a rotated photograph thus fits it, and one drawn on the unrotated pixels is found out by its size (not, though, when the
rotation is by 180 degrees or the picture is square: no size tells that).

Shapes: H W pixels.
"""

import hashlib
import io
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps, TiffImagePlugin, UnidentifiedImageError

from nala_platform.data.images.eight_bit import (
    Samples,
    UnsupportedPixelsError,
    decode_as,
    samples_of,
    spread,
    stored_numbers,
    to_rgb,
)
from nala_platform.data.problems import BadFileError, Problem, gathering
from nala_platform.errors import UserError

ColorMap = tuple[tuple[int, int, int], ...]

# Loader workers, however they are started, inherit the environment.
MAX_PIXELS_VARIABLE = "NALA_MAX_IMAGE_PIXELS"
MAX_IMAGE_PIXELS = 178_956_970  # where Pillow takes a picture for a decompression bomb

_DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N")
# what Pillow's decoders raise over a damaged file
_BROKEN = (
    *(OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error),
    *(KeyError, IndexError, TypeError, OverflowError, ZeroDivisionError),
)
_FORMATS = ("PNG", "JPEG", "TIFF", "GIF", "WEBP", "BMP", "PPM")
_UNKNOWN_KIND = ("unsupported", "unknown", "not available", "not supported", "no decoder", "cannot read this")


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


class Raster(NamedTuple):
    """A loaded picture, upright, with what was known of its samples, and the low bytes of 16-bit colours."""

    image: Image.Image
    samples: Samples
    low: Image.Image | None = None


def set_max_image_pixels(most: int) -> None:
    """Refuse pictures of more pixels, here and in processes that are started from here; 0 refuses none.

    Without it, Pillow's own limit holds: twice ``PIL.Image.MAX_IMAGE_PIXELS``.

    Raises:
        UserError: ``most`` is negative.
    """
    if most < 0:
        raise UserError(f"--max_image_pixels is {most}: it must be 1 or more, or 0 for no limit")
    os.environ[MAX_PIXELS_VARIABLE] = str(most)


def read_image(path: Path, data: bytes | None = None) -> Image.Image:
    """A picture as 8-bit RGB over white, upright; of several frames the first. `to_rgb` has the rule for each mode.

    Args:
        path: the file.
        data: its bytes, where it is no file of its own but lies in an archive; ``path`` is its name then.

    Raises:
        BadFileError: the file is missing, empty, truncated, no picture, too large, or holds pixels without a fixed
            range.
    """
    raster = _loaded(path, data, with_low=True)
    try:
        return to_rgb(*raster)
    except UnsupportedPixelsError as error:
        raise _bad("wrong mode", path, str(error)) from error


def read_indices(path: Path, color_map: ColorMap = ()) -> np.ndarray:
    """A mask as stored indices ``(H, W)`` int32, upright.

    Grey and palette files are read as indices, of up to 16 bits, whatever colours a palette gives them; black-and-white
    ones as 0 and 1; whole numbers of 32 bits as indices too, if they lie in 0..65535. Colours need a ``color_map``,
    whose i-th colour stands for index i.

    Raises:
        BadFileError: the file is missing, empty, truncated, no picture, lossy (JPEG), coloured without a colour map, or
            holds a colour that is not in it.
    """
    image, samples, _ = _loaded(path)
    if image.format in ("JPEG", "MPO"):
        raise _bad("wrong mode", path, "JPEG blurs the labels of a mask: save masks as PNG")
    if image.mode in ("1", "L", "P", *_DEEP):
        index_HW = stored_numbers(image, samples)
        if index_HW.min() < 0 or index_HW.max() > 65535:
            worst = f"index {index_HW.min()} or {index_HW.max()}"
            raise _bad("wrong label", path, f"{worst} is outside 0..65535: store class indices")
        return index_HW.astype(np.int32)
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


def _loaded(path: Path, data: bytes | None = None, *, with_low: bool = False) -> Raster:
    """The picture, loaded and upright; what Pillow raises on the way becomes one line."""
    seen = _watched.get()
    if seen is not None:
        seen.append(Opened(path))
    if data is None and not path.is_file():
        raise _bad("missing", path, "no such file")
    try:
        if not (path.stat().st_size if data is None else data):
            raise _bad("empty", path, "the file is empty (0 bytes): copy it again or delete it")
        if seen is not None:
            data = path.read_bytes() if data is None else data
            seen[-1] = Opened(path, hashlib.blake2b(data, digest_size=16).digest())
    except OSError as error:
        raise _bad("unreadable", path, f"cannot be read ({error.strerror}): let it be read or take it out") from error
    with opened(path, data) as image:
        samples = samples_of(image)
        if samples.is_premultiplied:
            decode_as(image, samples.rawmode)
        upright = _upright(image, samples, path)
    if seen is not None:
        seen[-1] = seen[-1]._replace(height=upright.height, width=upright.width)
    if not (with_low and samples.low) or samples.refusal:
        return Raster(upright, samples)
    with opened(path, data) as image:
        decode_as(image, samples.low)
        return Raster(upright, samples, _upright(image, samples, path))


def _upright(image: Image.Image, samples: Samples, path: Path) -> Image.Image:
    with _telling(path):
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
    image.info["spread"] = spread(samples)
    return image


@contextmanager
def opened(path: Path, data: bytes | None = None) -> Iterator[Any]:
    """The picture with its header read and its size checked, not yet loaded; closed at the end, what was loaded stays.

    Raises:
        BadFileError: the header cannot be read, or tells of too many pixels.
    """
    most = os.environ.get(MAX_PIXELS_VARIABLE)
    if most is not None:
        # the key takes the place of Pillow's own limit, which it also checks when it crops a loaded picture
        Image.MAX_IMAGE_PIXELS = None
    with _telling(path, data):
        image = Image.open(path if data is None else io.BytesIO(data))
    with image:
        pixels = image.width * image.height
        if most is not None and 0 < int(most) < pixels:
            raise _too_large(path, f"{image.width}x{image.height} are {pixels} pixels, more than the {most} allowed")
        yield image


@contextmanager
def _telling(path: Path, data: bytes | None = None) -> Iterator[None]:
    """Inside, what Pillow raises becomes a `BadFileError`."""
    try:
        yield
    except UnidentifiedImageError as error:
        raise _bad(*_unidentified(path, data)) from error
    except Image.DecompressionBombError as error:
        raise _too_large(path, str(error).partition(",")[0]) from error
    except _BROKEN as error:
        raise _bad(*_broken(path, error)) from error


def _too_large(path: Path, what: str) -> BadFileError:
    text = f"{what}: raise --max_image_pixels (0: no limit; PIL.Image.MAX_IMAGE_PIXELS from Python), or scale it down"
    return _bad("too large", path, text)


def _broken(path: Path, error: Exception) -> tuple[str, Path, str]:
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, KeyError) or any(word in reason.lower() for word in _UNKNOWN_KIND):
        return "unsupported", path, f"is of a kind that Pillow does not read ({reason}): save it as an 8-bit PNG"
    return "unreadable", path, f"cannot be read ({reason}): copy it again or delete it"


def _unidentified(path: Path, data: bytes | None) -> tuple[str, Path, str]:
    """What is known of a file that Pillow refuses: its plugins raise the reason, which `Image.open` drops."""
    with path.open("rb") if data is None else io.BytesIO(data) as file:
        head = file.read(16).ljust(16, b"\0")
        for name in _FORMATS:
            factory, accept = Image.OPEN[name]
            if accept is None or accept(head) is not True:
                continue
            file.seek(0)
            if name == "TIFF" and (bands := _bands(file)):
                return "unsupported", path, bands
            file.seek(0)
            try:
                factory(file, str(path)).close()
            except _BROKEN as error:
                reason = " ".join(str(error).split()) or type(error).__name__
                return "unreadable", path, f"begins as a {name} and cannot be read ({reason}): copy it again"
    return "unreadable", path, "not a picture that Pillow knows: replace or delete it"


def _bands(file: Any) -> str:
    """What a TIFF with a whole header holds; empty of one whose header is damaged."""
    try:
        head = file.read(8)
        head += file.read(8) if head[2:3] == b"\x2b" or head[3:4] == b"\x2b" else b""
        tags = TiffImagePlugin.ImageFileDirectory_v2(head)
        file.seek(tags.next)
        tags.load(file)
        bands, bits = int(tags.get(277, 1)), "/".join(dict.fromkeys(str(value) for value in tags.get(258, (1,))))
        kind = {2: "signed", 3: "floating-point", 5: "complex", 6: "complex"}.get((*tags.get(339, (1,)), 1)[0], "")
        what = f"{bands} band{'s' if bands > 1 else ''} of {bits} bits{f', {kind}' if kind else ''}"
        return f"is a TIFF of {what}, which is no picture: save 1 (grey), 3 (RGB) or 4 (RGBA) bands of 8 or 16 bits"
    except _BROKEN:
        return ""


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
