"""Files as people have them (FAULTS I1, G5): converted properly, or refused in one line."""

import hashlib
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nala_platform.data.images.image_file import Opened, read_image, read_indices, watching
from nala_platform.data.problems import BadFileError
from nala_platform.errors import UserError

MARKED = np.zeros((30, 50, 3), np.uint8)
MARKED[:15, :25] = (250, 10, 10)  # the upper left quarter is red


def refused(function, path, *words):
    with pytest.raises(UserError) as caught:
        function(path)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    assert all(word in message for word in words), message


def grey_png(bits, width, row):
    """A one-row grey PNG of 1, 2 or 4 bits a pixel, which Pillow does not write."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, 1, bits, 0, 0, 0, 0)
    data = zlib.compress(b"\0" + row)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_grey_becomes_three_equal_channels(tmp_path):
    grey = np.arange(200, dtype=np.uint8).reshape(10, 20)
    Image.fromarray(grey).save(tmp_path / "a.png")
    image = read_image(tmp_path / "a.png")
    assert image.mode == "RGB"
    assert (np.asarray(image) == grey[..., None]).all()


def test_cmyk_jpeg_keeps_its_colours(tmp_path):
    Image.fromarray(MARKED).convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    assert Image.open(tmp_path / "a.jpg").mode == "CMYK"
    pixels = np.asarray(read_image(tmp_path / "a.jpg"))
    assert np.abs(pixels[5, 5].astype(int) - (250, 10, 10)).max() < 20
    assert pixels[25, 45].max() < 20


def test_transparency_lies_over_white(tmp_path):
    clear = np.dstack([MARKED, np.full((30, 50), 255, np.uint8)])
    clear[20:, :, 3] = 0
    Image.fromarray(clear).save(tmp_path / "a.png")
    pixels = np.asarray(read_image(tmp_path / "a.png"))
    assert (pixels[20:] == 255).all() and (pixels[:20] == MARKED[:20]).all()


def test_palette_picture_with_transparent_entry(tmp_path):
    image = Image.fromarray(np.array([[0, 1]], np.uint8))
    image.putpalette([9, 8, 7, 60, 50, 40])
    image.save(tmp_path / "a.png", transparency=0)
    assert np.asarray(read_image(tmp_path / "a.png")).tolist() == [[[255, 255, 255], [60, 50, 40]]]


def test_16_bit_grey_is_scaled_not_clipped(tmp_path):
    Image.fromarray(np.array([[0, 257 * 100, 65535]], np.uint16)).save(tmp_path / "a.png")
    assert np.asarray(read_image(tmp_path / "a.png"))[0, :, 0].tolist() == [0, 100, 255]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_of_image_and_mask_alike(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(MARKED).save(tmp_path / "a.png", exif=exif)
    Image.fromarray((MARKED[..., 0] > 0).astype(np.uint8)).save(tmp_path / "m.png", exif=exif)
    # EXIF 2.3, tag 274: which side row 0 and column 0 are seen on
    upright = {
        1: MARKED,
        2: MARKED[:, ::-1],
        3: MARKED[::-1, ::-1],
        4: MARKED[::-1],
        5: MARKED.transpose(1, 0, 2),
        6: np.rot90(MARKED, -1),
        7: MARKED[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(MARKED),
    }[orientation]
    assert (np.asarray(read_image(tmp_path / "a.png")) == upright).all()
    assert (read_indices(tmp_path / "m.png") == (upright[..., 0] > 0)).all()


def test_exif_rotation_of_a_16_bit_picture(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray((np.arange(6, dtype=np.uint16) * 257).reshape(2, 3)).save(tmp_path / "a.png", exif=exif)
    assert np.asarray(read_image(tmp_path / "a.png"))[..., 0].tolist() == [[3, 0], [4, 1], [5, 2]]


def test_truncated_empty_and_foreign_files_are_named(tmp_path):
    whole = tmp_path / "whole.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (80, 80, 3), dtype=np.uint8)).save(whole)
    truncated, empty, foreign = (tmp_path / name for name in ("truncated.jpg", "empty.jpg", "foreign.jpg"))
    truncated.write_bytes(whole.read_bytes()[:2000])
    empty.touch()
    foreign.write_text("<html>404</html>")
    for function in (read_image, read_indices):
        refused(function, empty, "empty (0 bytes)")
        refused(function, foreign, "not a picture")
        refused(function, tmp_path / "none.png", "no such file")
    refused(read_image, truncated, "truncated", "copy it again")


def test_png_broken_in_the_middle_is_named(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(path)
    data = bytearray(path.read_bytes())
    data[200:220] = bytes(20)
    path.write_bytes(data)
    refused(read_image, path, "cannot be read")


def test_floating_point_picture_is_refused(tmp_path):
    Image.fromarray(np.ones((2, 2), np.float32)).save(tmp_path / "a.tif")
    refused(read_image, tmp_path / "a.tif", "floating-point")
    refused(read_indices, tmp_path / "a.tif", "mode F")


def test_palette_mask_is_read_as_indices(tmp_path):
    index = np.array([[0, 1, 2], [2, 1, 15]], np.uint8)
    image = Image.fromarray(index)
    image.putpalette([value for i in range(256) for value in (i * 7 % 256, 200, 255 - i)])
    image.save(tmp_path / "a.png")
    assert Image.open(tmp_path / "a.png").mode == "P"
    assert read_indices(tmp_path / "a.png").tolist() == index.tolist()


@pytest.mark.parametrize(
    ("bits", "row", "indices"),
    [(1, b"\x50", [0, 1, 0, 1]), (2, b"\x1b", [0, 1, 2, 3]), (4, b"\x01\x2f", [0, 1, 2, 15])],
)
def test_grey_masks_of_few_bits_are_indices_not_shades(tmp_path, bits, row, indices):
    (tmp_path / "a.png").write_bytes(grey_png(bits, 4, row))
    assert read_indices(tmp_path / "a.png").tolist() == [indices]


def test_16_bit_mask_keeps_its_indices(tmp_path):
    Image.fromarray(np.array([[0, 149, 300]], np.uint16)).save(tmp_path / "a.png")
    assert read_indices(tmp_path / "a.png").tolist() == [[0, 149, 300]]


def test_coloured_mask_needs_a_colour_map(tmp_path):
    colours = ((0, 0, 0), (128, 0, 0), (0, 0, 1))
    index = np.array([[0, 1], [2, 1]])
    for mode in ("RGB", "RGBA"):
        path = tmp_path / f"{mode}.png"
        Image.fromarray(np.array(colours, np.uint8)[index]).convert(mode).save(path)
        refused(read_indices, path, "color_map")
        assert read_indices(path, colours).tolist() == index.tolist()
        refused(lambda path: read_indices(path, colours[:2]), path, "(0, 0, 1)", "color_map")


def test_mask_modes_without_indices_are_refused(tmp_path):
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "a.jpg")
    refused(read_indices, tmp_path / "a.jpg", "JPEG", "PNG")
    Image.fromarray(np.zeros((4, 4, 2), np.uint8)).save(tmp_path / "a.png")
    refused(read_indices, tmp_path / "a.png", "mode LA")
    Image.fromarray(np.array([[-1, 3]], np.int32)).save(tmp_path / "a.tif")
    refused(read_indices, tmp_path / "a.tif", "outside 0..65535")


def test_an_error_tells_its_kind_and_file_also_from_another_process(tmp_path):
    Image.fromarray(np.ones((2, 2), np.float32)).save(tmp_path / "float.tif")
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "mask.jpg")
    Image.fromarray(np.array([[-1, 3]], np.int32)).save(tmp_path / "negative.tif")
    (tmp_path / "empty.png").touch()
    (tmp_path / "page.png").write_text("<html>")
    for function, name, kind in (
        (read_image, "none.png", "missing"),
        (read_image, "empty.png", "empty"),
        (read_image, "page.png", "unreadable"),
        (read_image, "float.tif", "wrong mode"),
        (read_indices, "mask.jpg", "wrong mode"),
        (read_indices, "negative.tif", "wrong label"),
    ):
        with pytest.raises(BadFileError) as caught:
            function(tmp_path / name)
        problem = pickle.loads(pickle.dumps(caught.value)).problem
        assert (problem.kind, problem.path) == (kind, tmp_path / name)
        assert str(caught.value) == f"{problem.path}: {problem.text}" and str(tmp_path) not in problem.text


def test_bytes_out_of_an_archive_are_read_as_a_file_of_that_name(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    assert (np.asarray(read_image(Path("shard.tar/a.png"), data)) == noise).all()
    for cut, kind in ((b"", "empty"), (data[:100], "unreadable"), (b"no picture", "unreadable")):
        with pytest.raises(BadFileError) as caught:
            read_image(Path("shard.tar/a.png"), cut)
        assert caught.value.problem.kind == kind and str(caught.value).startswith("shard.tar/a.png: ")


def test_what_is_opened_can_be_watched(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # seen on its side
    Image.fromarray(MARKED).save(tmp_path / "a.png", exif=exif)
    (tmp_path / "empty.png").touch()
    digest = hashlib.blake2b((tmp_path / "a.png").read_bytes(), digest_size=16).digest()
    with watching() as seen:
        read_image(tmp_path / "a.png")
        with pytest.raises(BadFileError):
            read_image(tmp_path / "empty.png")
    read_image(tmp_path / "a.png")
    assert seen == [Opened(tmp_path / "a.png", digest, 50, 30), Opened(tmp_path / "empty.png")]
