"""Image and mask folders (FAULTS G3, G4, G5, I1): pairs, labels, sizes, and one line for what is wrong."""

import numpy as np
import pytest
import torch
from PIL import Image
from segmented import refused

from nala_platform.data.images.labels import Labels
from nala_platform.data.images.mask_folder import MaskFolderData
from nala_platform.data.images.views import View
from nala_platform.data.order import Draw
from nala_platform.data.problems import BadFileError, collecting

THREE = Labels(num_classes=3)
STILL = View(crop=16, scale=(1.0, 1.0), hflip=0.0)


def test_masks_are_read_as_they_are(mask_tree):
    data = MaskFolderData(str(mask_tree), THREE)
    assert data.num_classes == 3 and data.class_names == ("0", "1", "2") and data.ignore_index == 255
    for batch in data.val_dataloader():
        stem = batch["name"][0].removeprefix("val/")
        stored = np.asarray(Image.open(mask_tree / "annotations" / "val" / stem))
        assert (batch["target"][0].numpy() == stored).all()
        pixels = np.asarray(Image.open(mask_tree / "images" / "val" / stem)) / 255
        shown = batch["image"][0].permute(1, 2, 0).numpy() * data.std + data.mean
        assert np.abs(shown - pixels).max() < 1e-5


def test_evaluation_sees_whole_images_of_odd_sizes(mask_tree):
    shapes = [batch["image"].shape for batch in MaskFolderData(str(mask_tree), THREE).val_dataloader()]
    assert shapes == [(1, 3, 30, 50), (1, 3, 33, 33), (1, 3, 47, 61)]


@pytest.mark.parametrize("crop", [33, (30, 50)])
def test_training_crops_have_one_size(mask_tree, crop):
    data = MaskFolderData(str(mask_tree), THREE, batch_size=3, augment=View(crop=crop))
    size = (crop, crop) if isinstance(crop, int) else crop
    for batch in data.train_dataloader():
        assert batch["image"].shape == (3, 3, *size) and batch["target"].shape == (3, *size)


def test_zero_label_is_shifted_once_in_every_split(mask_tree):
    labels = Labels(num_classes=2, reduce_zero_label=True)
    data = MaskFolderData(str(mask_tree), labels, batch_size=1, augment=STILL)
    for batch in data.test_dataloader():
        stored = np.asarray(Image.open(mask_tree / "annotations" / batch["name"][0])).astype(int)
        assert (batch["target"][0].numpy() == np.where(np.isin(stored, (0, 255)), 255, stored - 1)).all()
    for batch in data.train_dataloader():
        assert set(batch["target"].unique().tolist()) <= {0, 1, 255}
        assert {0, 1} <= set(batch["target"].unique().tolist())


def test_without_annotations_for_test_validation_is_tested_and_said(mask_tree, save, noise):
    save(noise(9, 9), mask_tree / "images" / "test" / "x.png")
    data = MaskFolderData(str(mask_tree), THREE)
    assert data.protocol()["test split"] == "val (there is no annotations/test)"
    assert len(data.items("test")) == 3
    assert [batch["name"] for batch in data.predict_dataloader()] == [["x.png"]]
    save(np.zeros((9, 9), np.uint8), mask_tree / "annotations" / "test" / "x.png")
    data = MaskFolderData(str(mask_tree), THREE)
    assert data.protocol()["test split"] == "test"
    assert [batch["name"] for batch in data.test_dataloader()] == [["test/x.png"]]


def test_an_empty_folder_of_test_images_stops_nothing(mask_tree):
    (mask_tree / "images" / "test").mkdir()
    data = MaskFolderData(str(mask_tree), THREE)
    assert len(data.items("predict")) == len(data.items("val")) == 3


def test_image_and_mask_may_differ_in_suffix_and_lie_deeper(tmp_path, save, noise):
    for split in ("train", "val"):
        save(noise(8, 9), tmp_path / "images" / split / "city" / "a.b.jpg")
        save(np.ones((8, 9), np.uint8), tmp_path / "annotations" / split / "city" / "a.b.png")
    [batch] = MaskFolderData(str(tmp_path), THREE).val_dataloader()
    assert batch["name"] == ["val/city/a.b.jpg"]


def test_missing_partners_are_counted_and_named(mask_tree):
    for stem in ("00", "03"):
        (mask_tree / "annotations" / "train" / f"{stem}.png").unlink()
    (mask_tree / "images" / "train" / "01.png").unlink()
    refused(
        lambda: MaskFolderData(str(mask_tree), THREE),
        "3 files are not fit to be used",
        f"{mask_tree}/images/train/00.png: has no mask of the same name in {mask_tree}/annotations/train",
        f"{mask_tree}/images/train/03.png: has no mask",
        f"{mask_tree}/annotations/train/01.png: has no image of the same name in {mask_tree}/images/train",
    )
    with collecting() as problems:
        data = MaskFolderData(str(mask_tree), THREE)
    assert [(problem.kind, problem.path.name) for problem in problems] == [
        ("unpaired", "00.png"),
        ("unpaired", "03.png"),
        ("unpaired", "01.png"),
    ]
    assert [pair.name for pair in data.pairs["train"]] == ["train/02.png", "train/04.png", "train/05.png"]


def test_files_in_an_exclude_list_are_left_out_with_their_partners(mask_tree, tmp_path):
    (mask_tree / "annotations" / "train" / "00.png").unlink()
    (mask_tree / "annotations" / "train" / "02.png").write_bytes(b"no picture")
    (mask_tree / "images" / "train" / "01.png").unlink()
    listed = tmp_path / "exclude.txt"
    listed.write_text(
        f"# found bad\nimages/train/00.png\n{mask_tree}/annotations/train/01.png\n\nannotations/train/02.png\n"
    )
    data = MaskFolderData(str(mask_tree), THREE, exclude=str(listed))
    assert [pair.name for pair in data.pairs["train"]] == ["train/03.png", "train/04.png", "train/05.png"]
    assert len(data.pairs["val"]) == 3 and data.protocol()["excluded"] == 3


def test_missing_and_empty_folders_are_named(mask_tree, tmp_path):
    refused(lambda: MaskFolderData(str(tmp_path / "nowhere"), THREE), "nowhere does not exist")
    (mask_tree / "annotations").rename(mask_tree / "labels")
    refused(lambda: MaskFolderData(str(mask_tree), THREE), "no folder annotations/train", "there: images, labels")
    (mask_tree / "annotations" / "train").mkdir(parents=True)
    refused(lambda: MaskFolderData(str(mask_tree), THREE), "annotations/train: holds no picture")


def test_two_images_of_one_name_are_refused(mask_tree, save, noise):
    save(noise(30, 50), mask_tree / "images" / "train" / "00.jpg")
    refused(lambda: MaskFolderData(str(mask_tree), THREE), "00.jpg and 00.png have the same name", "keep one")
    listed = mask_tree / "exclude.txt"
    listed.write_text("images/train/00.png\n")
    data = MaskFolderData(str(mask_tree), THREE, exclude=str(listed))
    assert [pair.image.name for pair in data.pairs["train"]][:2] == ["00.jpg", "01.png"]


@pytest.mark.parametrize("workers", [0, 2])
def test_label_200_of_3_classes_names_the_file(mask_tree, save, workers):
    path = mask_tree / "annotations" / "train" / "04.png"
    mask = np.asarray(Image.open(path)).copy()
    mask[5, 5] = 200
    save(mask, path)
    # six masks are all read when the module is made
    refused(lambda: MaskFolderData(str(mask_tree), THREE), path, "label 200 in 1 pixels", "num_classes 3")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_wrong_label_that_the_survey_missed_is_found_when_read(tmp_path, save, noise, workers):
    for split, count in (("train", 40), ("val", 1)):
        for i in range(count):
            save(noise(6, 6, i), tmp_path / "images" / split / f"{i:02d}.png")
            save(np.full((6, 6), 200 if i == 1 else 1, np.uint8), tmp_path / "annotations" / split / f"{i:02d}.png")
    data = MaskFolderData(str(tmp_path), THREE, num_workers=workers, augment=STILL)
    refused(lambda: list(data.train_dataloader()), "01.png", "label 200 in 36 pixels")


@pytest.mark.parametrize("labels", [Labels(num_classes=2), THREE, Labels(num_classes=2, reduce_zero_label=True)])
@pytest.mark.parametrize("ignore", [255, 254])
def test_foreground_at_255_is_an_error_that_says_so(tmp_path, save, noise, labels, ignore):
    labels = Labels(labels.num_classes, ignore_index=ignore, reduce_zero_label=labels.reduce_zero_label)
    for split in ("train", "val"):
        for i in range(3):
            save(noise(8, 8), tmp_path / "images" / split / f"{i}.png")
            save(np.uint8([[0, 255] * 4] * 8) * (i > 0), tmp_path / "annotations" / split / f"{i}.png")
    refused(lambda: MaskFolderData(str(tmp_path), labels), "only 0 and 255", "store it as 1")


def binary_tree(root, save, noise, special, values):
    """Twenty binary masks with 0 and 1; of one that the survey of 16 passes over, other values."""
    for split, count in (("train", 40), ("val", 2)):
        for i in range(count):
            mask = np.uint8([[0, 1, 1, 0]] * 4)
            if split == "train" and i in special:
                mask = np.uint8([values] * 4)
            save(noise(4, 4, i), root / "images" / split / f"{i:02d}.png")
            save(mask, root / "annotations" / split / f"{i:02d}.png")


def test_one_binary_mask_with_255_among_others_is_refused_when_read(tmp_path, save, noise):
    binary_tree(tmp_path, save, noise, {1}, [0, 255, 255, 0])
    data = MaskFolderData(str(tmp_path), Labels(num_classes=2), batch_size=1, augment=STILL)
    refused(lambda: list(data.train_dataloader()), "01.png", "foreground stored as 255")


def test_background_with_ignored_pixels_is_allowed_where_255_surely_means_ignored(tmp_path, save, noise):
    binary_tree(tmp_path, save, noise, {1}, [0, 255, 255, 0])
    save(np.uint8([[0, 1, 255, 0]] * 4), tmp_path / "annotations" / "train" / "00.png")
    data = MaskFolderData(str(tmp_path), Labels(num_classes=2), batch_size=1, augment=STILL)
    assert len(list(data.train_dataloader())) == 40


@pytest.mark.parametrize("stored", [0, 1, 7])
def test_binary_masks_of_0_and_255_are_trained_on_by_a_mapping(tmp_path, save, noise, stored):
    labels = Labels(num_classes=2, mapping={0: 0, 255: 1})
    for split in ("train", "val"):
        for i in range(3):
            save(noise(4, 4), tmp_path / "images" / split / f"{i}.png")
            save(np.uint8([[0, 255, 255, stored * (i == 1)]] * 4), tmp_path / "annotations" / split / f"{i}.png")
    if stored:
        refused(lambda: MaskFolderData(str(tmp_path), labels), "1.png", f"label {stored}", "mapping knows 0, 255 alone")
        return
    data = MaskFolderData(str(tmp_path), labels)
    assert all(batch["target"][0].tolist() == [[0, 1, 1, 0]] * 4 for batch in data.val_dataloader())
    assert data.protocol()["labels"] == "0 -> 0, 255 -> 1, others refused"


def test_masks_without_a_word_about_them_are_refused(mask_tree):
    refused(lambda: MaskFolderData(str(mask_tree)), "layout 'folders'", "--data.labels.num_classes")
    refused(lambda: MaskFolderData(str(mask_tree), layout="ade20"), "data.layout='ade20'", "did you mean 'ade20k'?")


def test_a_module_with_bad_masks_can_be_built_to_list_them(mask_tree, save):
    bad = mask_tree / "annotations" / "train"
    save(np.full((33, 33), 9, np.uint8), bad / "01.png")
    (bad / "02.png").write_bytes(b"")
    with collecting() as problems:
        data = MaskFolderData(str(mask_tree), THREE)
    assert {(problem.kind, problem.path.name) for problem in problems} == {
        ("wrong label", "01.png"),
        ("empty", "02.png"),
    }
    with pytest.raises(BadFileError) as caught:
        data.whole("train")[Draw(1, epoch=0)]
    assert caught.value.problem.kind == "wrong label"


def test_palette_masks_are_indices_and_coloured_ones_refused(mask_tree, save):
    for path in sorted((mask_tree / "annotations").rglob("*.png")):
        image = Image.fromarray(np.asarray(Image.open(path)))
        image.putpalette([value for i in range(256) for value in (255 - i, i, 40)])
        image.save(path)
    data = MaskFolderData(str(mask_tree), THREE)
    assert set(torch.cat([batch["target"].flatten() for batch in data.val_dataloader()]).unique().tolist()) == {
        0,
        1,
        2,
        255,
    }
    coloured = mask_tree / "annotations" / "train" / "00.png"
    Image.open(coloured).convert("RGB").save(coloured)
    refused(lambda: MaskFolderData(str(mask_tree), THREE), coloured, "color_map")


def test_coloured_masks_with_a_colour_map(tmp_path, save, noise):
    colours = ((0, 0, 0), (128, 0, 0), (0, 128, 0), (224, 224, 192))
    index = np.array([[0, 1, 2, 3]] * 4)
    for split in ("train", "val"):
        save(noise(4, 4), tmp_path / "images" / split / "a.png")
        save(np.array(colours, np.uint8)[index], tmp_path / "annotations" / split / "a.png")
    data = MaskFolderData(str(tmp_path), Labels(class_names=("sky", "roof", "tree"), color_map=colours))
    [batch] = data.val_dataloader()
    assert batch["target"][0].tolist() == [[0, 1, 2, 255]] * 4
    assert data.palette == colours[:3] and data.class_names == ("sky", "roof", "tree")


def test_a_size_mismatch_names_both_files_and_sizes(mask_tree, save):
    mask = mask_tree / "annotations" / "val" / "00.png"
    save(np.zeros((50, 30), np.uint8), mask)
    data = MaskFolderData(str(mask_tree), THREE)
    refused(
        lambda: list(data.val_dataloader()), mask, "50x30", mask_tree / "images" / "val" / "00.png", "30x50", "EXIF"
    )


def test_a_rotated_photograph_fits_the_mask_drawn_on_it(tmp_path, save, noise):
    exif = Image.Exif()
    exif[0x0112] = 6
    for split in ("train", "val"):
        save(noise(30, 50), tmp_path / "images" / split / "a.jpg", exif=exif)
        save(np.ones((50, 30), np.uint8), tmp_path / "annotations" / split / "a.png")
    [batch] = MaskFolderData(str(tmp_path), THREE).val_dataloader()
    assert batch["image"].shape == (1, 3, 50, 30)
    save(np.ones((30, 50), np.uint8), tmp_path / "annotations" / "val" / "a.png")
    refused(lambda: list(MaskFolderData(str(tmp_path), THREE).val_dataloader()), "30x50", "50x30", "as it is shown")
