"""Modules are built from YAML and typed flags, as the command line does it."""

import pytest
from jsonargparse import ArgumentParser
from lightning import LightningDataModule

from nala_platform.data.images.image_folder import Augment, ImageFolderData, Pixels
from nala_platform.data.images.labels import Labels
from nala_platform.data.images.mask_folder import MaskFolderData
from nala_platform.data.images.views import View

PACKAGE = "nala_platform.data.images"


@pytest.fixture
def build():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(LightningDataModule, "data")
    parser.add_argument("--config", action="config")
    return lambda *words: parser.instantiate(parser.parse_args([str(word) for word in words])).data


@pytest.mark.parametrize("name", ["digits.DigitsData", "bluemarble.BlueMarbleData"])
def test_embedded_modules_need_no_arguments(build, name):
    data = build(f"--data={PACKAGE}.{name}", "--data.batch_size=7", "--data.num_workers=2")
    assert data.batch_size == 7 and data.num_workers == 2


def test_image_folder_with_grouped_settings(build, class_tree, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        f"data:\n  class_path: {PACKAGE}.image_folder.ImageFolderData\n  init_args:\n    root: {class_tree}\n"
        "    pixels: {size: [30, 50], crop_pct: 0.9, mean: [0.5, 0.5, 0.5]}\n    augment: {re_prob: 0.25}\n"
    )
    data = build("--config", file, "--data.augment.randaug", "rand-m5", "--data.pixels.interpolation", "bilinear")
    assert isinstance(data, ImageFolderData) and data.size == (30, 50)
    assert data.augment == Augment(randaug="rand-m5", re_prob=0.25)
    assert data.pixels == Pixels(size=(30, 50), crop_pct=0.9, interpolation="bilinear", mean=(0.5, 0.5, 0.5))
    assert build("--config", file, "--data.augment.randaug", "none", "--data.pixels.size", 64).size == (64, 64)


def test_mask_folder_with_grouped_settings(build, mask_tree, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        f"data:\n  class_path: {PACKAGE}.mask_folder.MaskFolderData\n  init_args:\n    root: {mask_tree}\n"
        "    labels: {class_names: [sea, land, lake]}\n    augment: {crop: [24, 32], scale: [1, 1.5]}\n"
    )
    data = build("--config", file, "--data.augment.hflip", 0)
    assert isinstance(data, MaskFolderData) and data.labels == Labels(class_names=("sea", "land", "lake"))
    assert data.augment == View(crop=(24, 32), scale=(1.0, 1.5), hflip=0.0)
    flags = (
        "--data",
        f"{PACKAGE}.mask_folder.MaskFolderData",
        "--data.root",
        mask_tree,
        "--data.labels.num_classes",
        3,
    )
    assert build(*flags).labels == Labels(num_classes=3)
    assert build(*flags, "--data.labels.mapping", "{0: 0, 1: 1, 2: 2, 255: 255}").labels.mapping[255] == 255
    assert build(*flags, "--data.labels.color_map", "[[0,0,0],[1,1,1],[2,2,2]]").palette[2] == (2, 2, 2)
