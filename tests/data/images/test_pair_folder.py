"""Folders of pictures for super-resolution: what fits together, and what is said when it does not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from nala_platform.data.images.pair_folder import Folders, PairFolderData
from nala_platform.data.images.pairs import Patch, shrunk
from nala_platform.errors import UserError

SMALL = Patch(size=8, repeats=2)


@pytest.fixture
def folders(tmp_path, save, noise):
    """Large pictures, three to train and two to validate; sides that no scale divides."""
    for split, count in (("train", 3), ("val", 2)):
        for i in range(count):
            save(noise(61 + i, 83, i), tmp_path / split / f"{i:04d}.png")
    return Folders(str(tmp_path / "train"), str(tmp_path / "val"))


def with_small(folders, root, scale, name="{stem}x{scale}", **changes):
    """The same, with a folder of small validation pictures of the given naming."""
    for i in range(2):
        with Image.open(f"{folders.val_hr}/{i:04d}.png") as image:
            large = image.crop((0, 0, image.width // scale * scale, image.height // scale * scale))
        path = root / "small" / f"{name.format(stem=f'{i:04d}', scale=scale)}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        shrunk(large, scale).save(path)
    return Folders(**{**vars(folders), "val_lr": str(root / "small"), **changes})


def refused(folders, *texts, **options):
    with pytest.raises(UserError) as caught:
        data = PairFolderData(folders=folders, patch=SMALL, **options)
        list(data.val_dataloader())
    assert "\n" not in str(caught.value)
    for text in texts:
        assert str(text) in str(caught.value)


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_small_pictures_are_made_and_large_ones_cropped(folders, scale):
    """U4."""
    data = PairFolderData(folders=folders, scale=scale, patch=SMALL, batch_size=3)
    first, second = data.val_dataloader()
    assert first["name"] == ["0000.png"] and second["name"] == ["0001.png"]
    assert first["image"].shape == (1, 3, 61 // scale, 83 // scale)
    assert first["target"].shape == (1, 3, 61 // scale * scale, 83 // scale * scale)
    batches = list(data.train_dataloader())
    assert len(batches) == 2 and batches[0]["image"].shape == (3, 3, 8, 8)
    assert batches[0]["target"].shape == (3, 3, 8 * scale, 8 * scale)
    assert data.protocol()["test split"].startswith("val") and "Pillow" in data.protocol()["low resolution"]
    assert [batch["name"] for batch in data.test_dataloader()] == [["0000.png"], ["0001.png"]]


@pytest.mark.parametrize("name", ["{stem}", "{stem}x{scale}", "{stem}_x{scale}", "{stem}_LR", "{stem}_LRx{scale}"])
@pytest.mark.parametrize("scale", [2, 4])
def test_small_pictures_are_found_under_the_names_that_people_give_them(folders, tmp_path, name, scale):
    paired = PairFolderData(folders=with_small(folders, tmp_path, scale, name), scale=scale, patch=SMALL)
    made = PairFolderData(folders=folders, scale=scale, patch=SMALL)
    for one, other in zip(paired.val_dataloader(), made.val_dataloader(), strict=True):
        assert torch.equal(one["image"], other["image"]) and torch.equal(one["target"], other["target"])
    assert "files" in paired.protocol()["low resolution"]


def test_hr_in_the_name_of_a_large_picture_is_dropped(tmp_path, save, noise):
    large = noise(40, 48)
    save(large, tmp_path / "big" / "img_001_HR.png")
    small = shrunk(Image.fromarray(large), 2)
    save(np.asarray(small), tmp_path / "little" / "img_001_LR.png")
    big = str(tmp_path / "big")
    [batch] = PairFolderData(folders=Folders(big, big, val_lr=str(tmp_path / "little")), patch=SMALL).val_dataloader()
    assert batch["image"].shape == (1, 3, 20, 24)


def test_missing_partners_are_counted_and_named(folders, tmp_path):
    paired = with_small(folders, tmp_path, 2)
    (tmp_path / "small" / "0000x2.png").unlink()
    refused(
        paired,
        f"{folders.val_hr}/0000.png: has no small picture in {tmp_path / 'small'}",
        "add 0000, 0000x2 or 0000_LR",
    )
    with_small(folders, tmp_path, 2)
    (tmp_path / "val" / "0001.png").unlink()
    refused(paired, f"{tmp_path / 'small' / '0001x2.png'}: has no large picture in {folders.val_hr}")
    (tmp_path / "small" / "0001x2.png").rename(tmp_path / "small" / "zero.png")
    (tmp_path / "small" / "0000x2.png").rename(tmp_path / "small" / "one.png")
    refused(
        paired, "3 files", "val/0000.png: has no", "small/one.png: has no", "small/zero.png: has no", "--data.exclude"
    )


def test_small_pictures_of_another_scale_are_named(folders, tmp_path):
    paired = with_small(folders, tmp_path, 4, "{stem}")
    refused(paired, "0000.png: is 20x15 (split val), but 1/2 of", "83x61, is 41x30", "--data.scale", scale=2)


def test_a_patch_larger_than_a_picture_is_named_with_split_path_and_sizes(folders, tmp_path, save, noise):
    save(noise(15, 90), tmp_path / "train" / "thin.png")
    refused(folders, tmp_path / "train" / "thin.png", "split train", "90x15", "16x16 or more", "--data.patch.size")


def test_a_picture_too_small_to_score_is_named(folders, tmp_path, save, noise):
    save(noise(14, 90), tmp_path / "val" / "thin.png")
    refused(folders, tmp_path / "val" / "thin.png", "split val", "90x14", "15x15 or more")


def test_missing_and_empty_folders_are_named(folders, tmp_path):
    refused(Folders(folders.train_hr, str(tmp_path / "nowhere")), "data.folders.val_hr", "nowhere does not exist")
    (tmp_path / "bare").mkdir()
    refused(Folders(str(tmp_path / "bare"), folders.val_hr), tmp_path / "bare", "holds no picture")
    refused(Folders(**{**vars(folders), "test_lr": folders.val_hr}), "there is no test_hr")
    refused(Folders(), "data.folders.train_hr is missing")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_file_is_named(folders, tmp_path, workers):
    path = tmp_path / "val" / "0001.png"
    path.write_bytes(path.read_bytes()[:900])
    refused(folders, path, "cannot be read", num_workers=workers)


def test_grey_rotated_and_deep_files_are_read(folders, tmp_path, save, noise):
    """I1: one policy; the header's size is the upright one."""
    exif = Image.Exif()
    exif[0x0112] = 6
    save(noise(40, 60), tmp_path / "val" / "turned.jpg", exif=exif)
    save(noise(40, 60)[..., 0], tmp_path / "val" / "grey.png")
    shapes = {
        b["name"][0]: b["target"].shape[-2:] for b in PairFolderData(folders=folders, patch=SMALL).val_dataloader()
    }
    assert shapes["turned.jpg"] == (60, 40) and shapes["grey.png"] == (40, 60)


def test_prediction_takes_any_picture(folders, tmp_path, save, noise):
    save(noise(7, 5), tmp_path / "new" / "deep" / "a.png")
    data = PairFolderData(folders=folders, patch=SMALL, predict_path=str(tmp_path / "new"))
    [batch] = data.predict_dataloader()
    assert batch["image"].shape == (1, 3, 7, 5) and batch["name"] == ["deep/a.png"]
    data = PairFolderData(
        folders=folders, patch=replace(SMALL, tile=40), batch_size=2, predict_path=str(tmp_path / "new")
    )
    assert [batch["tile"].tolist() for batch in data.predict_dataloader()] == [[40]]
    assert "tile" not in next(iter(data.train_dataloader()))
    refused(folders, "nowhere does not exist", predict_path=str(tmp_path / "nowhere"))
