"""Class-folder trees: what is read, and what is refused at the door."""

import numpy as np
import pytest
import torch
from PIL import Image

from nala_platform.data.images.image_folder import Augment, ImageFolderData, Pixels
from nala_platform.errors import UserError

QUIET = Augment(randaug="none", hflip=0.0)


def test_classes_are_the_sorted_folders(class_tree):
    data = ImageFolderData(str(class_tree))
    assert data.class_names == ("cat", "dog") and data.num_classes == 2
    batch = next(iter(data.val_dataloader()))
    assert batch["name"] == [f"val/{name}/{i:02d}.png" for name in ("cat", "dog") for i in range(3)]
    assert batch["target"].tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("size", [224, 33, (30, 50), (224, 352)])
def test_any_image_size(class_tree, size):
    data = ImageFolderData(str(class_tree), pixels=Pixels(size=size), batch_size=2)
    expected = (size, size) if isinstance(size, int) else size
    for loader in (data.train_dataloader(), data.val_dataloader()):
        assert next(iter(loader))["image"].shape == (2, 3, *expected)


def test_evaluation_is_resize_then_centre_crop(class_tree):
    pixels = Pixels(size=20, crop_pct=0.5, interpolation="bilinear", mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    data = ImageFolderData(str(class_tree), pixels=pixels)
    batch = next(iter(data.val_dataloader()))
    source = Image.open(class_tree / "val" / "cat" / "00.png")  # 30 high, 50 wide
    resized = np.asarray(source.resize((66, 40), Image.Resampling.BILINEAR)) / 255  # the shorter side is 20 / 0.5
    expected = (resized[10:30, 23:43] - (0.1, 0.2, 0.3)) / (0.5, 0.6, 0.7)
    assert np.abs(batch["image"][0].permute(1, 2, 0).numpy() - expected).max() < 1e-5
    assert data.mean == pixels.mean and data.std == pixels.std


@pytest.mark.parametrize(
    "augment",
    [
        QUIET,
        Augment(randaug="none", color_jitter=0.4),
        Augment(randaug="augmix-m3-w3"),
        Augment(randaug="original"),
        Augment(randaug="3a", color_jitter=0.3),
        Augment(re_prob=1.0, vflip=0.5),
    ],
)
def test_each_augmentation_is_repeatable(class_tree, augment):
    def images(workers):
        data = ImageFolderData(
            str(class_tree), pixels=Pixels(size=24), batch_size=8, augment=augment, num_workers=workers
        )
        return torch.cat([batch["image"] for batch in data.train_dataloader()])

    assert torch.equal(images(0), images(2))


@pytest.mark.parametrize("workers", [0, 2])
def test_repeated_augmentation_shows_fewer_pictures_each_in_other_guises(class_tree, workers):
    augment = Augment(randaug="rand-m9-mstd0.5-inc1", copies=3)
    data = ImageFolderData(str(class_tree), pixels=Pixels(size=24), batch_size=4, num_workers=workers, augment=augment)
    loader = data.train_dataloader()
    epochs = []
    for epoch in (0, 1, 0):
        loader.sampler.set_epoch(epoch)
        batches = list(loader)
        names = [name for batch in batches for name in batch["name"]]
        images = torch.cat([batch["image"] for batch in batches])
        assert len(names) == 16 and all(names[i] == names[i - i % 3] for i in range(16))
        assert len({image.numpy().tobytes() for image in images}) > 12
        epochs.append((names, images))
    assert epochs[0][0] != epochs[1][0]
    assert epochs[0][0] == epochs[2][0] and torch.equal(epochs[0][1], epochs[2][1])


def test_random_erasing_and_flips_act(class_tree):
    def first(**options):
        augment = Augment(**{"randaug": "none", "hflip": 0.0, "scale": (1.0, 1.0), "ratio": (1.0, 1.0), **options})
        data = ImageFolderData(str(class_tree), pixels=Pixels(size=33), batch_size=16, augment=augment)
        batch = next(iter(data.train_dataloader()))
        at = batch["name"].index("train/cat/01.png")  # 33 x 33, so the crop is the picture
        return batch["image"][at]

    assert torch.equal(first(hflip=1.0), first().flip(-1))
    assert torch.equal(first(vflip=1.0), first().flip(-2))
    changed = (first(re_prob=1.0) != first()).any(0).float().mean()
    assert 0.01 < changed < 0.5


def test_without_a_test_folder_validation_is_tested_and_said(class_tree, save, noise):
    data = ImageFolderData(str(class_tree))
    assert data.protocol()["test split"].startswith("val (there is no test part")
    names = [name for batch in data.test_dataloader() for name in batch["name"]]
    assert names[0] == "val/cat/00.png"
    for name in ("cat", "dog", "dog"):
        save(noise(20, 20), class_tree / "test" / name / f"{name}.png")
    save(noise(20, 20), class_tree / "test" / "dog" / "second.png")
    data = ImageFolderData(str(class_tree))
    assert data.protocol()["test split"] == "test"
    assert data.protocol()["images"] == {"train": 16, "val": 6, "test": 3}
    assert data.baselines() == {"majority class": {"top1": pytest.approx(1 / 3)}}
    assert len(data.items("test")) == 3


def test_test_pictures_without_classes_are_for_prediction(class_tree, save, noise):
    save(noise(20, 20), class_tree / "test" / "1.png")
    data = ImageFolderData(str(class_tree))
    assert data.protocol()["test split"].startswith("val")
    assert next(iter(data.predict_dataloader()))["name"] == ["1.png"]


def test_pictures_in_deeper_folders_count_and_other_files_do_not(class_tree, save, noise):
    save(noise(9, 9), class_tree / "val" / "cat" / "more" / "x.PNG")
    save(noise(9, 9), class_tree / "val" / "cat" / ".hidden" / "y.png")
    (class_tree / "val" / "cat" / "Thumbs.db").write_text("")
    assert len(ImageFolderData(str(class_tree)).items("val")) == 7


def test_missing_folders_are_named(class_tree, tmp_path):
    with pytest.raises(UserError, match=r"folder .*nowhere does not exist"):
        ImageFolderData(str(tmp_path / "nowhere"))
    (class_tree / "val").rename(class_tree / "validation")
    with pytest.raises(UserError, match=r"has no folder val \(there: train, validation\)"):
        ImageFolderData(str(class_tree))


def test_an_empty_class_folder_is_named(class_tree):
    (class_tree / "train" / "emu").mkdir()
    with pytest.raises(UserError, match=r"train/emu: the class folder holds no picture"):
        ImageFolderData(str(class_tree))


def test_class_folders_must_agree(class_tree, save, noise):
    (class_tree / "val" / "dog").rename(class_tree / "val" / "dogs")
    with pytest.raises(
        UserError, match=r"2 files .*val/dogs: a class folder that train has not.*val/dog: train has this class folder"
    ):
        ImageFolderData(str(class_tree))


def test_one_class_is_none(tmp_path, save, noise):
    save(noise(9, 9), tmp_path / "train" / "all" / "x.png")
    save(noise(9, 9), tmp_path / "val" / "all" / "x.png")
    with pytest.raises(UserError, match="1 class folders: classification needs two or more"):
        ImageFolderData(str(tmp_path))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_file_is_one_line(class_tree, workers):
    path = class_tree / "val" / "dog" / "00.png"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UserError) as caught:
        list(ImageFolderData(str(class_tree), num_workers=workers).val_dataloader())
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda: Augment(re_prob=2.0), "data.augment.re_prob is 2.0"),
        (lambda: Augment(scale=(1.0, 0.5)), "the smaller first"),
        (lambda: Augment(color_jitter=0.4), "color_jitter does not act beside randaug"),
        (lambda: Augment(pad=-1), "data.augment.pad is -1: it must be 0 or more"),
        (lambda: Augment(copies=0), "data.augment.copies is 0: it must be 1 or more"),
        (lambda: Pixels(crop_pct=0.0), "data.pixels.crop_pct is 0.0"),
        (lambda: Pixels(std=(0.1, 0.0, 0.1)), "data.pixels.std"),
    ],
)
def test_settings_out_of_range_are_named(build, word):
    with pytest.raises(UserError, match=word):
        build()


@pytest.mark.parametrize("text", ["nonsense", "rand-m9-zz1", "rand-mx", "augmix-q", "", "rand-m9-", "Rand-m9"])
def test_an_unknown_augmentation_string_is_named(class_tree, text):
    with pytest.raises(UserError, match=f"data.augment.randaug: timm does not know '{text}'"):
        ImageFolderData(str(class_tree), augment=Augment(randaug=text))


@pytest.mark.parametrize("text", ["rand-n3-p0.5-m9-mstd101-mmax12-inc1", "rand-t3a", "v0r", "augmix-m5-w4-d2-b1-a1"])
def test_what_timm_knows_is_taken(class_tree, text):
    data = ImageFolderData(str(class_tree), pixels=Pixels(size=16), batch_size=2, augment=Augment(randaug=text))
    assert next(iter(data.train_dataloader()))["image"].shape == (2, 3, 16, 16)


def test_image_size_must_be_positive():
    with pytest.raises(UserError, match=r"data\.pixels\.size is 0"):
        Pixels(size=0)
