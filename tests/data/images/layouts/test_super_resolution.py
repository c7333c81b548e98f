"""The layouts of super-resolution, on trees made in the very format, with their traps."""

import struct
import zlib

import numpy as np
import pytest
from paired import data, shown
from PIL import Image

from nala_platform.data.images.pairs import shrunk
from nala_platform.data.problems import collecting
from nala_platform.errors import UserError


def png16(pixels_HWC):
    """The bytes of a PNG of 16 bits a channel, grey or RGB; Pillow writes none in colour."""
    height, width, channels = pixels_HWC.shape
    rows = pixels_HWC.astype(">u2").reshape(height, -1)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 16, {1: 0, 3: 2}[channels], 0, 0, 0)),
        (b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


@pytest.mark.parametrize("scale", [3, 4])
@pytest.mark.parametrize("inside", ["", "DIV2K"])
def test_div2k_as_it_unpacks(div2k, noise, scale, inside):
    module = data(div2k / inside, "div2k", scale)
    assert [pair.name for pair in module.files["train"]] == ["0001.png", "0002.png", "0003.png"]
    batches = list(module.val_dataloader())
    assert [batch["name"] for batch in batches] == [["0801.png"], ["0802.png"]]
    for batch, seed in zip(batches, (801, 802), strict=True):
        expected = noise(72, 96, seed)
        assert np.array_equal(shown(batch["target"]), expected)
        assert np.array_equal(shown(batch["image"]), np.asarray(shrunk(Image.fromarray(expected), scale)))
    protocol = module.protocol()
    assert protocol["data"] == "div2k" and protocol["scale"] == scale
    assert protocol["images"] == {"train": 3, "val": 2} and protocol["low resolution"] == "read from files"
    assert protocol["test split"].startswith("val") and protocol["bits"].startswith("8")


def test_the_union_of_div2k_and_flickr2k(div2k):
    module = data(div2k, "df2k")
    names = [pair.name for pair in module.files["train"]]
    assert names == ["0001.png", "0002.png", "0003.png", "000001.png", "000002.png"]
    assert str(module.files["train"][-1].small).endswith("Flickr2K_LR_bicubic/X4/000002x4.png")
    assert len(module.files["val"]) == 2
    with pytest.raises(UserError, match=r"data.folders.val_hr is missing"):
        data(div2k, "flickr2k")
    valid = {"val_hr": str(div2k / "DIV2K" / "DIV2K_valid_HR")}
    alone = data(div2k, "flickr2k", folders=valid)
    assert [pair.name for pair in alone.files["train"]] == names[3:]
    assert alone.protocol()["low resolution"].startswith("Pillow")
    assert alone.protocol()["low resolution in training"] == "read from files"


def test_sub_images(div2k, both):
    home = div2k / "DIV2K"
    for name in ("0001_s001", "0001_s002", "0003_s001"):
        large, small = (
            home / place / f"{name}.png" for place in ("DIV2K_train_HR_sub", "DIV2K_train_LR_bicubic/X4_sub")
        )
        both(large, small, 4, (48, 48), len(name))
    module = data(div2k, "div2k_sub")
    assert [pair.name for pair in module.files["train"]] == ["0001_s001.png", "0001_s002.png", "0003_s001.png"]
    assert len(module.files["val"]) == 2
    with pytest.raises(UserError, match=r"has no folder Flickr2K_HR_sub \(there: Flickr2K_HR, Flickr2K_LR_bicubic\)"):
        data(div2k, "df2k_sub")


@pytest.mark.parametrize(
    ("layout", "scale", "message"),
    [
        ("div2k", 2, r"DIV2K_train_LR_bicubic has no folder X2 \(there: X3, X4\)"),
        ("div3k", 4, r"layout='div3k' is unknown; did you mean 'div2k'\?"),
        ("folders", 4, r"data.root is .*which layout folders does not read"),
    ],
)
def test_what_is_not_there_is_said(div2k, layout, scale, message):
    with pytest.raises(UserError, match=message):
        data(div2k, layout, scale)


def test_a_root_is_needed_and_must_exist(div2k):
    with pytest.raises(UserError, match=r"data\.root is missing: give --data\.root the folder that DIV2K lies in"):
        data(None, "div2k")
    with pytest.raises(UserError, match=r"data\.root: folder .*nowhere does not exist"):
        data(div2k / "nowhere", "div2k")


def test_a_missing_small_picture_is_named_and_the_others_stay(div2k):
    lost = div2k / "DIV2K" / "DIV2K_train_LR_bicubic" / "X4" / "0002x4.png"
    lost.unlink()
    with pytest.raises(UserError, match=r"DIV2K_train_HR/0002\.png: has no small picture in .*X4: add 0002, 0002x4 or"):
        data(div2k, "div2k")
    with collecting() as problems:
        module = data(div2k, "div2k")
    assert [(problem.kind, problem.path.name) for problem in problems] == [("unpaired", "0002.png")]
    assert [pair.name for pair in module.files["train"]] == ["0001.png", "0003.png"]


def test_problems_of_several_kinds_are_collected(div2k, save, noise):
    home = div2k / "DIV2K"
    (home / "DIV2K_train_HR" / "0001.png").write_bytes(b"no picture")
    save(noise(20, 96), home / "DIV2K_train_HR" / "0003.png")  # 1/4 of it has 5 rows, fewer than a patch
    save(noise(9, 9), home / "DIV2K_valid_LR_bicubic" / "X4" / "0801x4.png")
    with collecting() as problems:
        module = data(div2k, "div2k")
    kinds = {(problem.kind, problem.path.name) for problem in problems}
    assert kinds == {("unreadable", "0001.png"), ("wrong size", "0003.png"), ("wrong size", "0801x4.png")}
    assert {split: [pair.name for pair in files] for split, files in module.files.items()} == {
        "train": ["0002.png"],
        "val": ["0802.png"],
    }


@pytest.mark.parametrize("line", ["DIV2K/DIV2K_train_HR/0002.png", "DIV2K/DIV2K_train_LR_bicubic/X4/0002x4.png"])
def test_a_pair_is_left_out_if_either_file_is_named(div2k, tmp_path, line):
    (tmp_path / "bad.txt").write_text(f"# bad\n{line}\n")
    home = div2k / "DIV2K"
    if "LR" in line:
        (home / "DIV2K_train_HR" / "0002.png").write_bytes(b"")  # it is not looked at
    module = data(div2k, "div2k", exclude=str(tmp_path / "bad.txt"))
    assert [pair.name for pair in module.files["train"]] == ["0001.png", "0003.png"]
    assert module.protocol()["images"]["train"] == 2


def test_pictures_of_16_bits(div2k, tmp_path, noise):
    """Grey and colour are divided by 257 and rounded: the protocol says so."""
    folder = tmp_path / "Deep"
    folder.mkdir()
    draw = np.random.default_rng(0)
    grey, colour = (draw.integers(0, 65536, (40, 44, channels), dtype=np.uint16) for channels in (1, 3))
    (folder / "colour.png").write_bytes(png16(colour))
    (folder / "grey.png").write_bytes(png16(grey))
    module = data(div2k, "div2k", folders={"test_sets": str(folder)})
    one, other = (shown(sample["target"]) for sample in module.test_dataloader())
    assert np.array_equal(one, np.round(colour / 257))
    assert np.array_equal(other, np.repeat(np.round(grey / 257), 3, axis=2))
    assert module.protocol()["bits"] == {
        "16-bit colour: divided by 257, rounded": 1,
        "16-bit grey: divided by 257, rounded": 1,
    }


def test_traps_of_other_modes(div2k, tmp_path, save, noise):
    """I1: CMYK, EXIF rotation, a palette, transparency: converted, and the size is the upright one."""
    folder, exif = tmp_path / "Odd", Image.Exif()
    exif[0x0112] = 6
    save(noise(40, 60), folder / "a_turned.jpg", exif=exif)
    Image.fromarray(noise(40, 60)).convert("CMYK").save(folder / "b_cmyk.jpg")
    Image.fromarray(noise(40, 60)).convert("P").save(folder / "c_palette.png")
    clear = np.dstack([noise(40, 60), np.zeros((40, 60), np.uint8)])
    save(clear, folder / "d_clear.png")
    module = data(div2k, "div2k", folders={"test_sets": str(folder)})
    samples = [shown(sample["target"]) for sample in module.test_dataloader()]
    assert [sample.shape for sample in samples] == [(60, 40, 3), (40, 60, 3), (40, 60, 3), (40, 60, 3)]
    assert (samples[3] == 255).all()


def test_an_orientation_behind_the_pixels_is_no_false_alarm(div2k, noise):
    """A PNG may tell it in a chunk that the header does not show."""
    path = div2k / "DIV2K" / "DIV2K_valid_HR" / "0801.png"
    upright = noise(72, 96, 801)
    Image.fromarray(np.rot90(upright).copy()).save(path)  # stored lying; orientation 6 turns it clockwise
    exif = Image.Exif()
    exif[0x0112] = 6
    chunk = exif.tobytes().removeprefix(b"Exif\0\0")
    late = struct.pack(">I", len(chunk)) + b"eXIf" + chunk + struct.pack(">I", zlib.crc32(b"eXIf" + chunk))
    content = path.read_bytes()
    path.write_bytes(content[:-12] + late + content[-12:])
    first, _ = data(div2k, "div2k").val_dataloader()
    assert np.array_equal(shown(first["target"]), upright)


def test_two_files_of_one_name_are_reported(div2k, save, noise):
    save(noise(72, 96), div2k / "DIV2K" / "DIV2K_train_HR" / "0001.bmp")
    with pytest.raises(UserError, match=r"0001\.png: 0001\.bmp has the same name but for the suffix"):
        data(div2k, "div2k")


@pytest.mark.parametrize(("out", "stays"), [("0001.png", "0001.bmp"), ("0001.bmp", "0001.png")])
def test_of_two_files_of_one_name_either_can_be_left_out(div2k, tmp_path, save, noise, out, stays):
    folder = div2k / "DIV2K" / "DIV2K_train_HR"
    save(noise(72, 96), folder / "0001.bmp")
    (tmp_path / "bad.txt").write_text(f"{folder / out}\n")
    module = data(div2k, "div2k", exclude=str(tmp_path / "bad.txt"))
    assert module.files["train"][0].large.name == stays


def test_of_very_many_pairs_some_are_looked_at_before_training(div2k, monkeypatch, save, noise):
    """The others when they are read: the error names them all the same."""
    from nala_platform.data.images.layouts import super_resolution_pairs

    monkeypatch.setattr(super_resolution_pairs, "SURVEYED", 2)
    save(noise(8, 96), div2k / "DIV2K" / "DIV2K_train_HR" / "0002.png")
    module = data(div2k, "div2k", batch_size=3)
    assert len(module.files["train"]) == 3
    with pytest.raises(UserError, match=r"0002\.png: is 96x8 \(split train\), but x4 patches of 6 pixels need 24x24"):
        list(module.train_dataloader())
