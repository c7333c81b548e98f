"""The layouts of super-resolution, on trees made in the very format, with their traps."""

import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from nala_platform.data.images.pair_folder import Folders, PairFolderData
from nala_platform.data.images.pairs import Patch, shrunk
from nala_platform.data.problems import collecting
from nala_platform.errors import UserError

PATCH = Patch(size=6, repeats=1)


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


@pytest.fixture
def both(save, noise):
    """``both(large, small, scale, size, seed)``: writes a picture of noise and its reduction; gives the two arrays."""

    def write(large, small, scale, size=(61, 83), seed=0):
        pixels = noise(*size, seed)
        height, width = (edge // scale * scale for edge in size)
        reduced = np.asarray(shrunk(Image.fromarray(pixels[:height, :width]), scale))
        save(pixels, large)
        save(reduced, small)
        return pixels[:height, :width], reduced

    return write


@pytest.fixture
def div2k(tmp_path, both):
    """DIV2K as its archives unpack, x4 and x3: 3 pictures to train, 2 to validate; and 2 of Flickr2K."""
    root = tmp_path / "sr"
    for scale in (4, 3):
        for part, numbers in (("train", (1, 2, 3)), ("valid", (801, 802))):
            for i in numbers:
                lr = root / "DIV2K" / f"DIV2K_{part}_LR_bicubic" / f"X{scale}" / f"{i:04d}x{scale}.png"
                both(root / "DIV2K" / f"DIV2K_{part}_HR" / f"{i:04d}.png", lr, scale, (72, 96), i)
        for i in (1, 2):
            lr = root / "Flickr2K" / "Flickr2K_LR_bicubic" / f"X{scale}" / f"{i:06d}x{scale}.png"
            both(root / "Flickr2K" / "Flickr2K_HR" / f"{i:06d}.png", lr, scale, (48, 60), 10 + i)
    return root


def data(root, layout, scale=4, **options):
    folders = Folders(layout=layout, **options.pop("folders", {}))
    return PairFolderData(None if root is None else str(root), folders=folders, scale=scale, patch=PATCH, **options)


def shown(tensor_13HW):
    return (tensor_13HW[0] * 255).round().byte().permute(1, 2, 0).numpy()


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


# the four usual namings: large, small
NAMINGS = {
    "HR + LR_bicubic/X4": ("HR/{}.png", "LR_bicubic/X4/{}x4.png"),
    "GTmod12 + LRbicx4": ("GTmod12/{}.png", "LRbicx4/{}.png"),
    "image_SRF_4": ("image_SRF_4/{}_SRF_4_HR.png", "image_SRF_4/{}_SRF_4_LR.png"),
}


@pytest.fixture
def bench(tmp_path, both, save, noise):
    """Four test sets, a naming each: Set5 flat, Set14, BSDS100, Urban100; grey pictures among them."""
    root = tmp_path / "bench"
    for folder, naming, size in (
        ("Set14", "HR + LR_bicubic/X4", (61, 83)),
        ("BSDS100", "GTmod12 + LRbicx4", (48, 60)),
        ("Urban100", "image_SRF_4", (64, 44)),
    ):
        for i, name in enumerate(("img_001", "img_002")):
            large, small = (root / folder / place.format(name) for place in NAMINGS[naming])
            both(large, small, 4, size, len(folder) + i)
    save(noise(44, 44), root / "Urban100" / "image_SRF_4" / "img_001_SRF_4_bicubic.png")  # of another method
    save(noise(50, 46, 1), root / "Set5" / "baby.png")
    save(noise(50, 46, 2)[..., 0], root / "Set5" / "bird.png")
    return root


def test_each_naming_of_a_test_set(div2k, bench, noise):
    module = data(div2k, "div2k", folders={"test_sets": str(bench)})
    assert module.test_sets == ("set5", "set14", "b100", "urban100")
    samples = list(module.test_dataloader())
    assert [sample["name"][0] for sample in samples] == [
        *("set5/baby.png", "set5/bird.png", "set14/img_001.png", "set14/img_002.png"),
        *("b100/img_001.png", "b100/img_002.png"),
        *("urban100/img_001_SRF_4_HR.png", "urban100/img_002_SRF_4_HR.png"),
    ]
    assert torch.cat([sample["test_set"] for sample in samples]).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    seeds = {"set14": (61, 83, 5), "b100": (48, 60, 7), "urban100": (64, 44, 8)}
    for sample in samples[2::2]:
        height, width, seed = seeds[sample["name"][0].split("/")[0]]
        expected = noise(height, width, seed)[: height // 4 * 4, : width // 4 * 4]
        assert np.array_equal(shown(sample["target"]), expected)
        assert np.array_equal(shown(sample["image"]), np.asarray(shrunk(Image.fromarray(expected), 4)))
    flat = noise(50, 46, 1)[:48, :44]
    assert np.array_equal(shown(samples[0]["target"]), flat)
    assert np.array_equal(shown(samples[0]["image"]), np.asarray(shrunk(Image.fromarray(flat), 4)))
    assert (samples[1]["image"][0, 0] == samples[1]["image"][0, 2]).all() and samples[1]["image"].shape[1] == 3
    sets = module.protocol()["test sets"]
    assert [row["images"] for row in sets.values()] == [2, 2, 2, 2]
    assert [row["naming"] for row in sets.values()] == ["large pictures alone", *NAMINGS]
    assert sets["set5"]["low resolution"].startswith("Pillow") and sets["b100"]["low resolution"] == "read from files"
    assert module.protocol()["test split"] == "test"


@pytest.mark.parametrize("naming", [*NAMINGS, "flat"])
def test_one_test_set_is_one_row(div2k, tmp_path, both, save, noise, naming):
    """A folder that is a test set itself."""
    if naming == "flat":
        save(noise(40, 40), tmp_path / "BSD100" / "a.jpg")
    else:
        both(*(tmp_path / "BSD100" / place.format("a") for place in NAMINGS[naming]), 4, (48, 48))
    module = data(div2k, "div2k", folders={"test_sets": str(tmp_path / "BSD100")})
    assert module.test_sets == ("b100",) and len(module.files["test"]) == 1


def test_test_sets_can_be_named(div2k, bench):
    given = {"mine": str(bench / "Urban100"), "Set5": str(bench / "Set5")}
    assert data(div2k, "div2k", folders={"test_sets": given}).test_sets == ("set5", "mine")


def test_a_test_set_that_cannot_be_told_is_named(div2k, bench, tmp_path, save, noise):
    def refused(given, message):
        with pytest.raises(UserError, match=message):
            data(div2k, "div2k", folders={"test_sets": given})

    (bench / "Set14" / "LR_bicubic" / "X4").rename(bench / "Set14" / "LR_bicubic" / "X2")
    refused(
        str(bench), r"Set14 has none of HR \+ LR_bicubic/X4, .*there: HR, LR_bicubic.*give .*Set14/HR as its folder"
    )
    (bench / "Set14" / "GTmod12").mkdir()
    (bench / "Set14" / "LRbicx4").mkdir()
    (bench / "Set14" / "LR_bicubic" / "X2").rename(bench / "Set14" / "LR_bicubic" / "X4")
    refused({"a": str(bench / "Set14")}, r"has HR \+ LR_bicubic/X4 and GTmod12 \+ LRbicx4: move one out")
    refused({"a": str(tmp_path / "none")}, "none does not exist")
    refused(str(tmp_path / "none"), "none does not exist")
    refused({"BSD100": str(bench / "Set5"), "b100": str(bench / "Set5")}, "two of them are called b100")
    refused({"a/b": str(bench / "Set5")}, "'a/b' is no name")
    (tmp_path / "bare").mkdir()
    refused(str(tmp_path / "bare"), "neither test sets nor pictures")
    with pytest.raises(UserError, match="test_hr and test_sets"):
        data(div2k, "div2k", folders={"test_sets": str(bench), "test_hr": str(bench / "Set5")})


def test_pictures_of_16_bits(div2k, tmp_path, noise):
    """Grey is divided by 257; of colour Pillow gives the high byte: the protocol says so."""
    folder = tmp_path / "Deep"
    folder.mkdir()
    draw = np.random.default_rng(0)
    grey, colour = (draw.integers(0, 65536, (40, 44, channels), dtype=np.uint16) for channels in (1, 3))
    (folder / "colour.png").write_bytes(png16(colour))
    (folder / "grey.png").write_bytes(png16(grey))
    module = data(div2k, "div2k", folders={"test_sets": str(folder)})
    one, other = (shown(sample["target"]) for sample in module.test_dataloader())
    assert np.array_equal(one, colour >> 8)
    assert np.array_equal(other, np.repeat(grey // 257, 3, axis=2))
    assert module.protocol()["bits"] == {
        "16-bit colour: the high byte, as Pillow reads it": 1,
        "16-bit grey: divided by 257, rounded down": 1,
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


def test_only_the_folder_itself_is_flat(div2k, tmp_path, save, noise):
    save(noise(40, 40), tmp_path / "Set5" / "a.png")
    save(noise(40, 40), tmp_path / "Set5" / "other method" / "b.png")
    module = data(div2k, "div2k", folders={"test_sets": str(tmp_path / "Set5")})
    assert [pair.name for pair in module.files["test"]] == ["set5/a.png"]


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
