"""Test sets of super-resolution, in each of the namings that are in use."""

import numpy as np
import pytest
import torch
from paired import data, shown
from PIL import Image

from nala_platform.data.images.pairs import shrunk
from nala_platform.errors import UserError

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


def test_only_the_folder_itself_is_flat(div2k, tmp_path, save, noise):
    save(noise(40, 40), tmp_path / "Set5" / "a.png")
    save(noise(40, 40), tmp_path / "Set5" / "other method" / "b.png")
    module = data(div2k, "div2k", folders={"test_sets": str(tmp_path / "Set5")})
    assert [pair.name for pair in module.files["test"]] == ["set5/a.png"]
