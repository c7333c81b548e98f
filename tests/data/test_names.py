"""Names of two lists meet whatever Unicode form they are written in; two that only differ in it are an error."""

import csv
import io
import os
import tarfile
import unicodedata

import numpy as np
import pytest
from PIL import Image

from nala_platform.data.images.labels import Labels
from nala_platform.data.images.layouts.classification import LAYOUTS as CLASSES
from nala_platform.data.images.layouts.segmentation import LAYOUTS as MASKS
from nala_platform.data.images.layouts.super_resolution_pairs import PairSource, pair_up
from nala_platform.data.images.mask_folder import MaskFolderData
from nala_platform.data.names import Lookup
from nala_platform.data.problems import Excluded, collecting
from nala_platform.errors import UserError

NAME = "Café über Ångström"
NFC, NFD = (unicodedata.normalize(form, NAME) for form in ("NFC", "NFD"))
assert NFC != NFD
FORMS = [(NFC, NFD), (NFD, NFC)]


def save(path, size=(8, 6), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size).save(path, "PNG" if path.suffix.lower() == ".png" else "JPEG")
    return path


def names_of(problems):
    return sorted((problem.kind, problem.path.name) for problem in problems)


@pytest.mark.parametrize(("one", "other"), FORMS)
def test_images_and_masks(tmp_path, one, other):
    for split in ("train", "val"):
        save(tmp_path / "images" / split / f"{one}.JPG")
        save(tmp_path / "annotations" / split / f"{other}.PNG", mode="L")
    module = MaskFolderData(str(tmp_path), Labels(num_classes=2))
    assert [pair.name for pair in module.pairs["train"]] == [f"train/{one}.JPG"]
    assert len(module.items("val")) == 1


def test_two_files_that_only_differ_in_their_form_are_named_in_ascii(tmp_path):
    for split in ("train", "val"):
        save(tmp_path / "images" / split / "a.png")
        save(tmp_path / "annotations" / split / "a.png", mode="L")
    for name in (NFC, NFD):
        save(tmp_path / "images" / "train" / f"{name}.png")
    save(tmp_path / "annotations" / "train" / f"{NFC}.png", mode="L")
    with pytest.raises(UserError) as caught:
        MASKS["folders"](tmp_path, Excluded(None, tmp_path))
    assert ascii(f"{NFC}.png") in str(caught.value) and ascii(f"{NFD}.png") in str(caught.value)
    (tmp_path / "list.txt").write_text(f"images/train/{NFD}.png\n", encoding="utf-8")  # that one, and no other
    found = MASKS["folders"](tmp_path, Excluded(str(tmp_path / "list.txt"), tmp_path))
    assert [pair.image.name for pair in found.pairs["train"]] == [f"{NFC}.png", "a.png"]


@pytest.mark.parametrize(("one", "other"), FORMS)
@pytest.mark.parametrize("layout", ["voc2012", "voc2012_aug"])
def test_lists_of_names(tmp_path, one, other, layout):
    """The list, the image and the mask in two forms; suffixes in capitals; a byte-order mark before the list."""
    lists = tmp_path / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    for split, name in (("train", one), ("val", "b"), ("train_aug", one)):
        # a first word of a line is a name
        (lists / f"{split}.txt").write_text(f"{name.replace(' ', '_')}\n", encoding="utf-8-sig")
    for name in (other.replace(" ", "_"), "b"):
        save(tmp_path / "JPEGImages" / f"{name}.JPG")
    save(tmp_path / "SegmentationClass" / "b.png", mode="L")
    masks = "SegmentationClassAug" if layout == "voc2012_aug" else "SegmentationClass"
    save(tmp_path / masks / f"{one.replace(' ', '_')}.PNG", mode="L")
    found = MASKS[layout](tmp_path, Excluded(None, tmp_path))
    assert [pair.mask.parent.name for pair in found.pairs["train"]] == [masks]
    assert [pair.image.name for pair in found.pairs["val"]] == ["b.JPG"]
    save(tmp_path / "JPEGImages" / f"{one.replace(' ', '_')}.jpg")
    with collecting() as problems:
        MASKS[layout](tmp_path, Excluded(None, tmp_path))
    assert [problem.kind for problem in problems] == ["same name"]


@pytest.mark.parametrize(("one", "other"), FORMS)
def test_large_and_small_pictures(tmp_path, one, other):
    save(tmp_path / "large" / f"{one}.png", (8, 8))
    save(tmp_path / "small" / f"{other}x2.JPG", (4, 4))
    [pair] = pair_up(PairSource(tmp_path / "large", tmp_path / "small"), 2, Excluded(None, tmp_path))
    assert pair.small is not None and pair.small.name == f"{other}x2.JPG"
    save(tmp_path / "small" / f"{one}x2.png", (4, 4))
    with pytest.raises(UserError, match="NFC"):
        pair_up(PairSource(tmp_path / "large", tmp_path / "small"), 2, Excluded(None, tmp_path))


@pytest.mark.parametrize(("one", "other"), FORMS)
def test_class_folders_of_two_splits(tmp_path, one, other):
    for split, name in (("train", one), ("val", other)):
        for folder in (name, "zebra"):
            save(tmp_path / split / folder / "a.JPG")
    found = CLASSES["folders"](tmp_path, Excluded(None, tmp_path))
    assert found.class_names == (one, "zebra")  # as train has them
    assert found.parts["val"].label_N.tolist() == [0, 1]
    assert found.parts["val"].path(0) == tmp_path / "val" / other / "a.JPG" and found.parts["val"].read(0).size == (
        8,
        6,
    )
    save(tmp_path / "val" / one / "b.jpg")
    with pytest.raises(UserError, match="NFC") as caught:
        CLASSES["folders"](tmp_path, Excluded(None, tmp_path))
    assert ascii(one) in str(caught.value) and ascii(other) in str(caught.value)


@pytest.mark.parametrize(("one", "other"), FORMS)
def test_the_table_of_a_flat_folder(tmp_path, one, other):
    data = tmp_path / "ILSVRC" / "Data" / "CLS-LOC"
    for name in (one, "n1"):
        save(data / "train" / name / "a.JPEG")
    save(data / "val" / f"{one}.JPEG")
    save(data / "val" / "b.JPEG")
    with (tmp_path / "LOC_val_solution.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        # the class is one word
        table.writerows([["ImageId", "PredictionString"], [other, "n1 1 1 2 2"], ["b", "n1 1 1 2 2"]])
    found = CLASSES["imagenet_kaggle"](tmp_path, Excluded(None, tmp_path))
    assert len(found.parts["val"]) == 2
    save(data / "val" / "b.png")
    with collecting() as problems:
        CLASSES["imagenet_kaggle"](tmp_path, Excluded(None, tmp_path))
    assert names_of(problems) == [("same name", "b.png")]


@pytest.mark.parametrize(("one", "other"), FORMS)
def test_members_of_a_shard(tmp_path, one, other):
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    for split in ("train", "val"):
        with tarfile.open(tmp_path / f"{split}-0.tar", "w") as archive:
            for name, data in (
                (f"{one}.png", picture.getvalue()),
                (f"{other}.cls", b"1"),
                ("b.PNG", picture.getvalue()),
            ):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
            info = tarfile.TarInfo("b.cls")
            info.size = 1
            archive.addfile(info, io.BytesIO(b"0"))
    found = CLASSES["webdataset"](tmp_path, Excluded(None, tmp_path))
    assert sorted(found.parts["train"].label_N.tolist()) == [0, 1]


@pytest.mark.parametrize(("one", "other"), FORMS)
def test_what_is_left_out(tmp_path, one, other):
    """A list in another form than the disk's, with a byte-order mark; members of archives too."""
    save(tmp_path / f"{one}.png")
    (tmp_path / "list.txt").write_text(f"{other}.png\nshard.tar/{other}.png\n", encoding="utf-8-sig")
    excluded = Excluded(str(tmp_path / "list.txt"), tmp_path)
    assert tmp_path / f"{one}.png" in excluded and tmp_path / "shard.tar" / f"{one}.png" in excluded
    assert tmp_path / "a.png" not in excluded and len(excluded.paths) == 2


def test_a_list_names_files_whose_bytes_are_no_text(tmp_path):
    odd = tmp_path / os.fsdecode(b"caf\xe9.png")
    save(odd)
    (tmp_path / "list.txt").write_bytes(b"caf\xe9.png\n")
    assert odd in Excluded(str(tmp_path / "list.txt"), tmp_path)
    (tmp_path / "list.txt").write_text("gone\u202fPM.png\n", encoding="utf-8")  # a space as macOS writes it
    assert len(Excluded(str(tmp_path / "list.txt"), tmp_path).paths) == 1
    (tmp_path / "list.txt").write_bytes(b"caf\xe8.png\n")  # no such file: the list is in another encoding
    with pytest.raises(UserError, match="cannot be read as UTF-8 text"):
        Excluded(str(tmp_path / "list.txt"), tmp_path)


def test_a_lookup_reads_each_folder_once(tmp_path, monkeypatch):
    for name in ("a.JPG", "b.jpg", "b.JPG"):
        save(tmp_path / name)
    lookup, asked, scandir = Lookup(), [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: (asked.append(folder), scandir(folder))[1])
    assert lookup.find(tmp_path / "a.jpg") == [tmp_path / "a.JPG"]
    assert lookup.find(tmp_path / "b.jpg") == [tmp_path / "b.JPG", tmp_path / "b.jpg"]
    assert lookup.find(tmp_path / "c.jpg") == [] == lookup.find(tmp_path / "none" / "c.jpg")
    assert asked == [tmp_path, tmp_path / "none"]


def test_cityscapes_with_suffixes_in_capitals(tmp_path):
    for split in ("train", "val"):
        for name in (NFC, "b"):
            save(tmp_path / "leftImg8bit" / split / "ulm" / f"{name}_leftImg8bit.PNG")
        for name in (NFD, "b"):
            save(tmp_path / "gtFine" / split / "ulm" / f"{name}_gtFine_labelIds.PNG", mode="L")
    found = MASKS["cityscapes"](tmp_path, Excluded(None, tmp_path))
    assert [len(pairs) for pairs in found.pairs.values()] == [2, 2]
    assert np.asarray(Image.open(found.pairs["train"][0].mask)).max() == 0
