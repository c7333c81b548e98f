"""Every kind of pixel becomes the 8-bit RGB value that the arithmetic of its rule gives, or is refused."""

import io
import os
import struct
import zlib
from fractions import Fraction

import numpy as np
import pytest
import tifffile
from PIL import Image

from nala_platform.data.images.image_file import MAX_PIXELS_VARIABLE, read_image, read_indices, set_max_image_pixels
from nala_platform.data.problems import BadFileError
from nala_platform.errors import UserError

RANDOM = np.random.default_rng(0)
GREY, COLOUR, GREY_ALPHA, COLOUR_ALPHA = 0, 2, 4, 6  # colour types of PNG


def png(samples_HWC, kind, bits=16, clear=None):
    """A PNG of 8 or 16 bits, with a transparent colour if wanted; Pillow does not write 16-bit colours."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width = samples_HWC.shape[:2]
    samples = samples_HWC.astype(">u2" if bits == 16 else np.uint8)
    rows = zlib.compress(b"".join(b"\0" + row.tobytes() for row in samples))
    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))]
    if clear is not None:
        parts.append(chunk(b"tRNS", np.atleast_1d(clear).astype(">u2").tobytes()))
    return b"\x89PNG\r\n\x1a\n" + b"".join([*parts, chunk(b"IDAT", rows), chunk(b"IEND", b"")])


def over_white(value, opacity, most):
    """The definition, in fractions: white shows through what is not opaque; halves go up."""
    exact = Fraction(255) * (1 - (1 - Fraction(int(value), most)) * Fraction(int(opacity), most))
    return int(exact + Fraction(1, 2))


def expected(colour_HWC, opacity_HW, most):
    height, width = colour_HWC.shape[:2]
    return np.array(
        [
            [[over_white(value, opacity_HW[y, x], most) for value in colour_HWC[y, x]] for x in range(width)]
            for y in range(height)
        ]
    )


def read(data, tmp_path, name="a.png"):
    path = tmp_path / name
    path.write_bytes(data)
    return np.asarray(read_image(path))


def read_tiff(samples, tmp_path, **options):
    file = io.BytesIO()
    tifffile.imwrite(file, samples, **options)
    return read(file.getvalue(), tmp_path, "a.tif")


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(("kind", "bands"), [(GREY, 1), (COLOUR, 3), (GREY_ALPHA, 2), (COLOUR_ALPHA, 4)])
def test_png_of_8_and_16_bits(bits, kind, bands, tmp_path):
    most = 2**bits - 1
    samples_HWC = RANDOM.integers(0, most + 1, (9, 11, bands))
    samples_HWC[0, :4] = np.array([0, most, most // 2, 1])[:, None]
    is_clear = kind in (GREY_ALPHA, COLOUR_ALPHA)
    colour_HWC = samples_HWC[..., :-1] if is_clear else samples_HWC
    opacity_HW = samples_HWC[..., -1] if is_clear else np.full((9, 11), most)
    wanted_HWC = np.broadcast_to(expected(colour_HWC, opacity_HW, most), (9, 11, 3))
    assert (read(png(samples_HWC, kind, bits), tmp_path) == wanted_HWC).all()


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(("kind", "bands"), [(GREY, 1), (COLOUR, 3)])
def test_the_transparent_colour_of_a_png_is_white_and_no_other(bits, kind, bands, tmp_path):
    most = 2**bits - 1
    samples_HWC = RANDOM.integers(1, most, (6, 7, bands))
    samples_HWC[2, 3] = clear = np.array([5 * most // 7, 200, 77])[:bands]
    samples_HWC[4, 4] = clear + np.eye(bands, dtype=int)[-1]  # differs in the last bit of one band
    opacity_HW = np.full((6, 7), most)
    opacity_HW[2, 3] = 0
    wanted_HWC = np.broadcast_to(expected(samples_HWC, opacity_HW, most), (6, 7, 3))
    assert (read(png(samples_HWC, kind, bits, clear), tmp_path) == wanted_HWC).all()
    assert (wanted_HWC[2, 3] == 255).all() and (wanted_HWC[4, 4] < 255).all()


def test_the_transparent_shade_of_a_grey_png_of_two_bits(tmp_path):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 1, 2, GREY, 0, 0, 0)) + chunk(b"tRNS", struct.pack(">H", 1))
    body = chunk(b"IDAT", zlib.compress(b"\0\x1b")) + chunk(b"IEND", b"")  # 0 1 2 3
    assert read(b"\x89PNG\r\n\x1a\n" + head + body, tmp_path)[0, :, 0].tolist() == [0, 255, 170, 255]


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("bands", [1, 3, 4])
def test_tiff_of_16_bits(byteorder, compression, bands, tmp_path):
    samples_HWC = RANDOM.integers(0, 65536, (5, 6, bands)).astype(np.uint16)
    options = {"photometric": "minisblack" if bands == 1 else "rgb", "compression": compression}
    if bands == 4:
        options["extrasamples"] = ["unassalpha"]
    pixels = read_tiff(samples_HWC[..., 0] if bands == 1 else samples_HWC, tmp_path, byteorder=byteorder, **options)
    opacity_HW = samples_HWC[..., 3] if bands == 4 else np.full((5, 6), 65535)
    assert (pixels == np.broadcast_to(expected(samples_HWC[..., :3], opacity_HW, 65535), (5, 6, 3))).all()


@pytest.mark.parametrize(("dtype", "most"), [(np.uint8, 255), (np.uint16, 65535)])
def test_tiff_whose_colours_are_stored_times_their_opacity(dtype, most, tmp_path):
    opacity_HW = RANDOM.integers(0, most + 1, (5, 6))
    stored_HW3 = RANDOM.integers(0, opacity_HW[..., None].repeat(3, -1) + 1)
    samples_HW4 = np.dstack([stored_HW3, opacity_HW]).astype(dtype)
    pixels = read_tiff(samples_HW4, tmp_path, photometric="rgb", extrasamples=["assocalpha"])
    assert (pixels == np.floor((stored_HW3 + most - opacity_HW[..., None]) * 255 / most + 0.5)).all()


def test_tiff_with_a_fourth_band_that_is_no_transparency(tmp_path):
    samples_HW4 = RANDOM.integers(0, 256, (5, 6, 4)).astype(np.uint8)
    pixels = read_tiff(samples_HW4, tmp_path, photometric="rgb", extrasamples=["unspecified"])
    assert (pixels == samples_HW4[..., :3]).all()


def test_tiff_in_which_zero_is_white(tmp_path):
    grey_HW = np.array([[0, 257 * 100, 65535]], np.uint16)
    assert read_tiff(grey_HW, tmp_path, photometric="miniswhite")[0, :, 0].tolist() == [255, 155, 0]
    assert read_tiff((grey_HW // 257).astype(np.uint8), tmp_path, photometric="miniswhite")[0, :, 0].tolist() == [
        *(255, 155, 0)
    ]


def test_grey_of_12_bits_has_4095_as_white(tmp_path):
    """Two samples in three bytes, high bits first, as TIFF packs them."""
    values = [0, 1000, 2048, 4095]
    data = bytes([0, values[0] << 4 | values[1] >> 8, values[1] & 255])
    packed = bytes([values[0] >> 4, (values[0] & 15) << 4 | values[1] >> 8, values[1] & 255])
    packed += bytes([values[2] >> 4, (values[2] & 15) << 4 | values[3] >> 8, values[3] & 255])
    assert len(data) == 3
    tags = [(256, 3, 4), (257, 3, 1), (258, 3, 12), (259, 3, 1), (262, 3, 1), (273, 4, 8), (277, 3, 1), (278, 3, 1)]
    tags.append((279, 4, len(packed)))
    entries = b"".join(struct.pack("<HHI", tag, kind, 1) + struct.pack("<I", value) for tag, kind, value in tags)
    start = 8 + len(packed)
    file = b"II*\0" + struct.pack("<I", start) + packed + struct.pack("<H", len(tags)) + entries + bytes(4)
    assert read(file, tmp_path, "a.tif")[0, :, 0].tolist() == [0, 62, 128, 255]  # 255 x / 4095: 62.27, 127.53


def test_pgm_of_any_range_is_spread_over_8_bits(tmp_path):
    values = np.array([0, 1, 500, 1000])
    file = b"P5 4 1 1000\n" + values.astype(">u2").tobytes()
    assert read(file, tmp_path, "a.ppm")[0, :, 0].tolist() == [0, 0, 128, 255]
    file = b"P5 3 1 65535\n" + np.array([0, 257 * 9 + 129, 65535]).astype(">u2").tobytes()
    assert read(file, tmp_path, "a.ppm")[0, :, 0].tolist() == [0, 10, 255]


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "LAB"])
def test_white_and_black_of_each_mode_without_transparency(mode, tmp_path):
    white_black = {
        "1": (255, 0),
        "L": (255, 0),
        "P": (1, 0),
        "RGB": ((255, 255, 255), (0, 0, 0)),
        "RGBX": ((255, 255, 255, 9), (0, 0, 0, 9)),
        "CMYK": ((0, 0, 0, 0), (0, 0, 0, 255)),
        "YCbCr": ((255, 128, 128), (0, 128, 128)),
        "LAB": ((255, 128, 128), (0, 128, 128)),
    }[mode]
    image = Image.new(mode, (2, 1))
    if mode == "P":
        image.putpalette([0, 0, 0, 255, 255, 255])
    for x, value in enumerate(white_black):
        image.putpixel((x, 0), value)
    image.save(tmp_path / "a.tif")
    assert Image.open(tmp_path / "a.tif").mode in (mode, "RGB" if mode == "RGBX" else mode)
    assert np.abs(np.asarray(read_image(tmp_path / "a.tif")).astype(int)[0] - [[255] * 3, [0] * 3]).max() <= 1


@pytest.mark.parametrize("mode", ["LA", "PA", "RGBA"])
def test_half_transparent_pixels_of_each_mode(mode, tmp_path):
    image = Image.new(mode, (1, 1))
    if mode == "PA":
        image.putpalette([10, 100, 200])
    image.putpixel((0, 0), {"LA": (90, 77), "PA": (0, 77), "RGBA": (10, 100, 200, 77)}[mode])
    image.save(tmp_path / "a.tif")
    colour = (90, 90, 90) if mode == "LA" else (10, 100, 200)
    wanted = [over_white(value, 77, 255) for value in colour]
    assert np.asarray(read_image(tmp_path / "a.tif"))[0, 0].tolist() == wanted


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (np.int32, [0, 128, 255]),
        (np.uint32, [0, 128, 255]),
        (np.int16, [-3, 0, 255]),
        (np.int8, [-3, 0, 100]),
        (np.float32, [0, 0.5, 1]),
    ],
)
def test_pixels_without_a_fixed_range_are_refused_not_black(dtype, values, tmp_path):
    with pytest.raises(BadFileError, match="no fixed range") as caught:
        read_tiff(np.array([values], dtype), tmp_path)
    assert caught.value.problem.kind == "wrong mode"


@pytest.mark.parametrize("bands", [2, 5])
def test_a_tiff_of_other_bands_tells_their_number(bands, tmp_path):
    with pytest.raises(BadFileError, match=f"{bands} bands"):
        read_tiff(np.zeros((6, 8, bands), np.uint8), tmp_path, photometric="minisblack", planarconfig="contig")
    with pytest.raises(BadFileError, match="3 bands of 16 bits"):
        read_tiff(np.zeros((3, 6, 8), np.uint16), tmp_path, photometric="rgb", planarconfig="separate")


def test_what_is_damaged_and_what_is_of_another_kind_are_told_apart(tmp_path):
    for dtype, words in ((np.float64, "64 bits, floating-point"), (np.float16, "16 bits, floating-point")):
        with pytest.raises(BadFileError, match=words) as caught:
            read_tiff(np.zeros((4, 4), dtype), tmp_path)
        assert caught.value.problem.kind == "unsupported" and "copy it again" not in str(caught.value)
    whole = png(RANDOM.integers(0, 256, (20, 20, 3)), COLOUR, 8)
    for data, words in ((whole[:20], "copy it again"), (whole[:60], "copy it again"), (b"<html>404", "not a picture")):
        with pytest.raises(BadFileError, match=words) as caught:
            read(data, tmp_path)
        assert caught.value.problem.kind == "unreadable"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", ["PNG", "TIFF", "JPEG", "GIF", "WEBP", "BMP", "PPM"])
def test_no_damage_to_a_file_is_more_than_one_line(format, tmp_path):
    """100 files of each format with bytes changed or cut off are read, or raise the one error there is."""
    file = io.BytesIO()
    Image.fromarray(RANDOM.integers(0, 256, (8, 8, 3)).astype(np.uint8)).save(file, format)
    whole, path, random = file.getvalue(), tmp_path / "a", np.random.default_rng(1)
    for _ in range(100):
        data = bytearray(whole)
        for place in random.integers(0, len(data), random.integers(1, 6)):
            data[place] = random.integers(0, 256)
        path.write_bytes(data[: random.integers(1, len(data) + 1)] if random.random() < 0.5 else data)
        for function in (read_image, read_indices):
            try:
                function(path)
            except BadFileError as error:
                assert "\n" not in str(error) and str(path) in str(error)


@pytest.fixture
def own_limit(monkeypatch):
    monkeypatch.setenv(MAX_PIXELS_VARIABLE, "1")  # put back at the end, whatever the test sets
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)


def test_the_limit_of_pixels_is_a_key_that_the_message_names(tmp_path, own_limit):
    Image.new("L", (30, 20)).save(tmp_path / "a.png")
    set_max_image_pixels(599)
    for function in (read_image, read_indices):
        with pytest.raises(BadFileError, match=r"30x20 are 600 pixels.*--max_image_pixels") as caught:
            function(tmp_path / "a.png")
        assert caught.value.problem.kind == "too large" and "delete" not in str(caught.value)
    for most in (600, 0):
        set_max_image_pixels(most)
        assert read_image(tmp_path / "a.png").size == (30, 20)
    with pytest.raises(UserError, match="--max_image_pixels is -1"):
        set_max_image_pixels(-1)


def test_from_python_the_limit_of_pillow_holds(tmp_path, monkeypatch):
    monkeypatch.delenv(MAX_PIXELS_VARIABLE, raising=False)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)
    Image.new("L", (30, 20)).save(tmp_path / "a.png")
    with pytest.raises(BadFileError, match="--max_image_pixels"):
        read_image(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert read_image(tmp_path / "a.png").size == (30, 20) and MAX_PIXELS_VARIABLE not in os.environ


def tiff_of_few_bits(bits, photometric, packed):
    """A TIFF of one row of four samples, packed as they are."""
    tags = [(256, 3, 4), (257, 3, 1), (258, 3, bits), (259, 3, 1), (262, 3, photometric), (273, 4, 8), (277, 3, 1)]
    tags += [(278, 3, 1), (279, 4, len(packed))]
    entries = b"".join(struct.pack("<HHI", tag, kind, 1) + struct.pack("<I", value) for tag, kind, value in tags)
    return b"II*\0" + struct.pack("<I", 8 + len(packed)) + packed + struct.pack("<H", len(tags)) + entries + bytes(4)


@pytest.mark.parametrize("photometric", [0, 1])
@pytest.mark.parametrize(
    ("bits", "packed", "indices"),
    [(2, b"\x1b", [0, 1, 2, 3]), (4, b"\x01\x2f", [0, 1, 2, 15]), (8, b"\0\1\2\xff", [0, 1, 2, 255])],
)
def test_grey_tiff_masks_hold_the_stored_numbers_whatever_shades_they_stand_for(
    bits, packed, indices, photometric, tmp_path
):
    (tmp_path / "a.tif").write_bytes(tiff_of_few_bits(bits, photometric, packed))
    assert read_indices(tmp_path / "a.tif").tolist() == [indices]


@pytest.mark.parametrize(
    ("dtype", "values"), [(np.uint16, [0, 300, 65535]), (np.int32, [0, 300, 65535]), (np.int16, [0, 300, 32767])]
)
def test_tiff_masks_hold_indices_beyond_255(dtype, values, tmp_path):
    for byteorder in "<>":
        tifffile.imwrite(tmp_path / "a.tif", np.array([values], dtype), byteorder=byteorder)
        assert read_indices(tmp_path / "a.tif").tolist() == [values]


@pytest.mark.parametrize("most", [3, 20, 255, 300, 65535])
def test_pgm_masks_hold_the_stored_numbers_of_any_range(most, tmp_path):
    values = np.unique(np.linspace(0, most, 50).astype(int))
    data = values.astype(">u2" if most > 255 else np.uint8).tobytes()
    (tmp_path / "a.ppm").write_bytes(b"P5 %d 1 %d\n" % (len(values), most) + data)
    assert read_indices(tmp_path / "a.ppm").tolist() == [values.tolist()]


def test_a_rotated_colour_picture_of_16_bits(tmp_path):
    """Both bytes of each sample are rotated: EXIF 6 shows the left column as the top row, from right to left."""
    samples_HW3 = RANDOM.integers(0, 65536, (2, 3, 3))
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, samples_HW3.astype(np.uint16), photometric="rgb", extratags=[(274, "H", 1, 6, False)])
    wanted = np.floor(np.rot90(samples_HW3, -1) / 257 + 0.5)
    assert (np.asarray(read_image(path)) == wanted).all()


def test_of_several_frames_the_first_is_read(tmp_path):
    frames = [Image.new("RGB", (4, 3), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    for name in ("a.gif", "a.tif", "a.png", "a.webp"):
        options = {"lossless": True} if name == "a.webp" else {}
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **options)
        assert Image.open(tmp_path / name).n_frames == 2
        assert (np.asarray(read_image(tmp_path / name)) == (255, 0, 0)).all()
