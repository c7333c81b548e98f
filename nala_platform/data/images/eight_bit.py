"""From the pixels that a file holds to 8-bit RGB over white: one rule for each kind of pixel.

Shapes: H W pixels, C channels, R rows of a band.
"""

import sys
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

# A 16-bit colour is decoded twice: Pillow's unpackers for "B" (big-endian) samples keep the first of the two bytes,
# those for "L" samples the last one, so both together have all 16 bits.
_NATIVE_SWAPPED = "B" if sys.byteorder == "little" else "L"
_SWAPPED = {";16B": ";16L", ";16L": ";16B", ";16N": f";16{_NATIVE_SWAPPED}"}

_GREY_16 = ("I;16", "I;16L", "I;16B", "I;16N")
_COLOURS = ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
_TRANSPARENT = ("LA", "La", "PA", "RGBA", "RGBa")
_TIFF_BITS, _TIFF_PHOTOMETRIC, _TIFF_BANDS, _TIFF_PLANAR, _TIFF_FORMAT = 258, 262, 277, 284, 339
_SIGNED, _WHITE_IS_ZERO, _SEPARATE = 2, 0, 2
_SPREAD = {"L;2": 85, "L;4": 17}
_BAND = 1 << 20  # pixels that are worked on at once, to bound the memory of 64-bit numbers
NO_RANGE = "have no fixed range: save the picture with unsigned 8 or 16 bits"


class UnsupportedPixelsError(Exception):
    """Pixels that have no 8-bit RGB value; the message says why and what to do."""


class Samples(NamedTuple):
    """How the samples of an opened picture lie in its file, known before it is decoded.

    Attributes:
        rawmode: Pillow's name for it, such as ``RGB;16B``; empty where the format has none.
        low: the rawmode that decodes the low bytes of 16-bit colours; empty where there are none.
        is_premultiplied: whether colours are stored times their opacity.
        is_inverted: whether 0 is white, which Pillow does not undo for 16-bit grey.
        most: what stands for white in a PGM or PPM of another range than 0..255 or 0..65535; 0 elsewhere.
        refusal: why the pixels cannot be had as they are meant; empty where they can.
    """

    rawmode: str
    low: str = ""
    is_premultiplied: bool = False
    is_inverted: bool = False
    most: int = 0
    refusal: str = ""


def samples_of(image: Any) -> Samples:
    """The samples of a picture that has been opened, but not loaded."""
    tile = getattr(image, "tile", None)
    args = tile[0].args if tile else ""
    rawmode = str(args if isinstance(args, str) else (args or ("",))[0])
    refusal = _tiff_refusal(image) if image.format == "TIFF" else ""
    if rawmode.startswith("RGBa"):
        straight = rawmode.replace("RGBa", "RGBA")
        return Samples(straight, _low(straight), is_premultiplied=True, refusal=refusal)
    is_grey = image.format == "TIFF" and image.mode in _GREY_16
    is_inverted = is_grey and image.tag_v2.get(_TIFF_PHOTOMETRIC, 1) == _WHITE_IS_ZERO
    most = int(args[1]) if tile and tile[0].codec_name.startswith("ppm") else 0
    return Samples(rawmode, _low(rawmode), is_inverted=is_inverted, most=most, refusal=refusal)


def _low(rawmode: str) -> str:
    if rawmode == "LA;16B":
        return "RGBA"  # the four bytes of a pixel, as they are
    kind, end = rawmode[:-4], rawmode[-4:]
    return kind + _SWAPPED[end] if kind in ("RGB", "RGBA", "RGBX", "CMYK") and end in _SWAPPED else ""


def _tiff_refusal(image: Any) -> str:
    tags = image.tag_v2
    bands, bits = tags.get(_TIFF_BANDS, 1), max(tags.get(_TIFF_BITS, (1,)))
    if _SIGNED in tags.get(_TIFF_FORMAT, ()):
        return f"signed whole numbers {NO_RANGE}"
    if bits > 8 and bands > 1 and tags.get(_TIFF_PLANAR, 1) == _SEPARATE:
        return f"{bands} bands of {bits} bits one after the other cannot be read: save them pixel by pixel"
    if image.mode == "L" and bands > 1:
        return f"{bands} bands, none of them transparency, are no picture: save 1 (grey), 3 (RGB) or 4 (RGBA) bands"
    return ""


def decode_as(image: Any, rawmode: str) -> None:
    """Have a picture that has been opened decoded by another of Pillow's unpackers."""
    image.tile = [
        tile._replace(args=rawmode if isinstance(tile.args, str) else (rawmode, *tile.args[1:])) for tile in image.tile
    ]


def stored_numbers(image: Image.Image, samples: Samples) -> np.ndarray:
    """The numbers ``(H, W)`` int64 in the file of a grey or palette picture: Pillow spreads and inverts some."""
    number_HW = np.asarray(image).astype(np.int64)
    if samples.most:
        range = 255 if image.mode == "L" else 65535
        return (number_HW * samples.most * 2 + range) // (2 * range)
    if samples.rawmode.startswith("L;") and "I" in samples.rawmode:  # 0 is shown as white
        number_HW = 255 - number_HW
    return number_HW // spread(samples)


def spread(samples: Samples) -> int:
    """What Pillow multiplies grey of 2 and 4 bits by."""
    return _SPREAD.get(samples.rawmode[:3], 1)


def to_rgb(image: Image.Image, samples: Samples, low: Image.Image | None) -> Image.Image:
    """A loaded picture as 8-bit RGB.

    ======================================= ==========================================================================
    pixels (Pillow's modes)                 become
    ======================================= ==========================================================================
    1, L, P                                 three equal channels, or the palette's colours
    RGB, RGBX                               themselves; bands beyond the third that are no transparency do not count
    CMYK, YCbCr, LAB, HSV                   what Pillow converts them to
    LA, La, PA, RGBA, RGBa, and 1, L, P,    the colour over white: 255 - (255 - colour) opacity / 255, rounded once;
    RGB, I;16 with a transparent colour     of 16 bits, with all of them
    I;16, and RGB, RGBA, LA, CMYK of 16     value / 257, rounded
    I;16 of 12 bits                         value 255 / 4095, rounded
    I of a PGM                              as I;16: Pillow spreads its values over 0..65535
    I, F otherwise; signed numbers          an error: they have no fixed range
    ======================================= ==========================================================================

    Args:
        image: as Pillow loads it.
        samples: what `samples_of` said of it.
        low: the low bytes of 16-bit colours, decoded by ``samples.low``.

    Raises:
        UnsupportedPixelsError: the pixels have no such value.
    """
    if samples.refusal or image.mode == "F" or (image.mode == "I" and image.format != "PPM"):
        kinds = {"F": "floating-point pixels", "I": "whole numbers of 32 bits"}
        raise UnsupportedPixelsError(samples.refusal or f"{kinds[image.mode]} {NO_RANGE}")
    if image.mode in (*_GREY_16, "I"):
        most = 4095 if samples.rawmode == "I;12" else 65535
        grey_HW1 = np.asarray(image).astype(np.uint16)[..., None]
        colour_HW1 = most - grey_HW1 if samples.is_inverted else grey_HW1
        return _rgb(colour_HW1, _opacity(grey_HW1, image, most), most)
    if low is not None:
        return _from_16_bits(image, samples, low)
    if image.mode not in (*_COLOURS, *_TRANSPARENT):
        raise UnsupportedPixelsError(f"pixels of mode {image.mode} have no rule: save the picture as an 8-bit PNG")
    if samples.is_premultiplied:
        rgba_HW4 = np.asarray(image)
        return _rgb(rgba_HW4[..., :3], rgba_HW4[..., 3:], 255, is_premultiplied=True)
    if image.mode in ("1", "L", "RGB") and "transparency" in image.info:
        colour_HWC = np.asarray(image if image.mode == "RGB" else image.convert("L"))
        colour_HWC = colour_HWC.reshape(*colour_HWC.shape[:2], -1)
        return _rgb(colour_HWC, _opacity(colour_HWC, image, 255), 255)
    if image.mode in _TRANSPARENT or "transparency" in image.info:
        clear = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    return image.convert("RGB")


def _from_16_bits(image: Image.Image, samples: Samples, low: Image.Image) -> Image.Image:
    low_HWC = np.asarray(low).astype(np.uint16)
    if samples.rawmode == "LA;16B":
        value_HWC = low_HWC[..., ::2] * 256 + low_HWC[..., 1::2]
    else:
        value_HWC = np.asarray(image).astype(np.uint16) * 256 + low_HWC
    if image.mode == "CMYK":
        return Image.frombytes("CMYK", image.size, _rounded(value_HWC, 65535).tobytes()).convert("RGB")
    if image.mode == "RGB":
        return _rgb(value_HWC, _opacity(value_HWC, image, 65535), 65535)
    return _rgb(value_HWC[..., :-1], value_HWC[..., -1:], 65535, is_premultiplied=samples.is_premultiplied)


def _opacity(colour_HWC: np.ndarray, image: Image.Image, most: int) -> np.ndarray | None:
    """0 where the pixels have the transparent colour of a PNG, else ``most``; None where it has none."""
    if "transparency" not in image.info:
        return None
    clear_C = np.atleast_1d(image.info["transparency"]) * image.info.get("spread", 1)
    return np.where((colour_HWC == clear_C).all(-1, keepdims=True), 0, most).astype(colour_HWC.dtype)


def _rgb(
    colour_HWC: np.ndarray, opacity_HW1: np.ndarray | None, most: int, *, is_premultiplied: bool = False
) -> Image.Image:
    """Colours in 0..``most``, of one or three channels, over white."""
    height, width = colour_HWC.shape[:2]
    byte_HW3 = np.empty((height, width, 3), np.uint8)
    rows = max(1, _BAND // width)
    for top in range(0, height, rows):
        band = slice(top, top + rows)
        colour_RWC = colour_HWC[band].astype(np.int64)
        opacity_RW1 = most if opacity_HW1 is None else opacity_HW1[band].astype(np.int64)
        if is_premultiplied:
            byte_HW3[band] = _rounded((colour_RWC + most - opacity_RW1).clip(max=most), most)
        elif opacity_HW1 is None:
            byte_HW3[band] = _rounded(colour_RWC, most)
        else:
            byte_HW3[band] = _rounded(most * most - (most - colour_RWC) * opacity_RW1, most * most)
    return Image.fromarray(byte_HW3)


def _rounded(value: np.ndarray, most: int) -> np.ndarray:
    """``255 value / most`` to the nearest."""
    return ((value.astype(np.int64) * 510 + most) // (2 * most)).astype(np.uint8)
