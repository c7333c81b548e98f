"""Published layouts whose lists name images and masks: VOC 2012 and Oxford-IIIT Pet (FAULTS G3, G5, I1)."""

import numpy as np
import pytest
from PIL import Image
from segmented import refused, targets

from nala_platform.data.images.labels import Labels
from nala_platform.data.images.mask_folder import MaskFolderData
from nala_platform.data.images.views import View


def voc_mask(seed, size=(12, 15)):
    return np.random.default_rng(seed).choice(np.uint8([0, 1, 15, 20, 255]), size)


@pytest.fixture
def voc(tmp_path, noise):
    """VOCdevkit/VOC2012 with palette masks, images that are in no list, and SBD's grey masks."""
    root = tmp_path / "VOCdevkit" / "VOC2012"
    for folder in ("JPEGImages", "SegmentationClass", "SegmentationClassAug", "ImageSets/Segmentation"):
        (root / folder).mkdir(parents=True)
    palette = [value for index in range(256) for value in ((index * 7) % 256, (255 - index), (index * 3) % 256)]
    for i in range(6):
        Image.fromarray(noise(12, 15, i)).save(root / "JPEGImages" / f"2007_00000{i}.jpg")
    for i in range(4):
        mask = Image.fromarray(voc_mask(i))
        mask.putpalette(palette)
        mask.save(root / "SegmentationClass" / f"2007_00000{i}.png")
    Image.fromarray(voc_mask(14)).save(root / "SegmentationClassAug" / "2007_000004.png")
    lists = {"train": "2007_000000\n2007_000001\n\n", "val": "2007_000002 \r\n2007_000003\r\n"}
    lists["train_aug"] = "".join(
        f"/JPEGImages/2007_00000{i}.jpg /SegmentationClassAug/2007_00000{i}.png\n" for i in (0, 1, 4)
    )
    for name, text in lists.items():
        (root / "ImageSets" / "Segmentation" / f"{name}.txt").write_text(text)
    return root


@pytest.mark.parametrize("levels", [0, 1, 2])
def test_voc_reads_palette_masks_as_indices_of_its_lists(voc, levels):
    root = [voc, *voc.parents][levels]
    data = MaskFolderData(str(root), layout="voc2012", batch_size=1, augment=View(crop=(12, 15), scale=(1, 1), hflip=0))
    assert data.num_classes == 21 and data.class_names[20] == "tvmonitor" and data.palette[15] == (192, 128, 128)
    assert data.protocol()["images"] == {"train": 2, "val": 2}
    found = targets(data.train_dataloader()) | targets(data.val_dataloader())
    assert sorted(found) == [f"2007_00000{i}.jpg" for i in range(4)]
    for i, name in enumerate(sorted(found)):
        assert (found[name] == voc_mask(i)).all()
    assert [batch["name"] for batch in data.predict_dataloader()] == [["2007_000002.jpg"], ["2007_000003.jpg"]]


@pytest.mark.parametrize("name", ["train_aug", "trainaug"])
def test_voc_with_sbd_takes_its_masks_where_there_are_some(voc, name):
    lists = voc / "ImageSets" / "Segmentation"
    if name == "trainaug":
        lists.joinpath("train_aug.txt").unlink()
        lists.joinpath("trainaug.txt").write_text("2007_000000\n2007_000001\n2007_000004\n")
    data = MaskFolderData(str(voc), layout="voc2012_aug")
    masks = [f"{pair.mask.parent.name}/{pair.mask.stem}" for pair in data.pairs["train"]]
    assert masks == [
        "SegmentationClass/2007_000000",
        "SegmentationClass/2007_000001",
        "SegmentationClassAug/2007_000004",
    ]
    assert [pair.mask.parent.name for pair in data.pairs["val"]] == ["SegmentationClass"] * 2
    assert data.protocol()["training list"] == f"{name}.txt"
    lists.joinpath(f"{name}.txt").unlink()
    refused(lambda: MaskFolderData(str(voc), layout="voc2012_aug"), "train_aug.txt or trainaug.txt", "voc2012 does")


def test_voc_lists_that_overlap_or_name_missing_files_are_refused(voc):
    lists = voc / "ImageSets" / "Segmentation"
    lists.joinpath("train_aug.txt").write_text("2007_000002\n2007_000000\n")
    refused(lambda: MaskFolderData(str(voc), layout="voc2012_aug"), "1 images of val.txt (2007_000002)")
    lists.joinpath("train.txt").write_text("2007_000000\n2007_000009\n2007_000005\n")
    refused(
        lambda: MaskFolderData(str(voc), layout="voc2012"),
        "3 files are not fit",
        "JPEGImages/2007_000009.jpg: is not there, but",
        "SegmentationClass/2007_000005.png: is not there",
    )
    lists.joinpath("train.txt").write_text("2007_000000\n2007_000000\n")
    refused(lambda: MaskFolderData(str(voc), layout="voc2012"), "train.txt names 1 images twice (2007_000000)")
    lists.joinpath("train.txt").write_text("\n")
    refused(lambda: MaskFolderData(str(voc), layout="voc2012"), "train.txt names no image")


@pytest.fixture
def pet_tree(tmp_path, save, noise):
    """Oxford-IIIT Pet: files named .jpg that are PNG and GIF, macOS's shadows, an image without a trimap."""
    root = tmp_path / "oxford-iiit-pet"
    lines = {"trainval": [], "test": []}
    for i in range(24):
        name, part = f"Abyssinian_{i}" if i % 2 else f"great_pyrenees_{i}", "test" if i >= 20 else "trainval"
        path = root / "images" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(noise(10, 8, i))
        {0: image, 1: image.convert("RGBA"), 2: image.convert("P")}[i % 3].save(path, ("JPEG", "PNG", "GIF")[i % 3])
        save(np.random.default_rng(i).choice(np.uint8([1, 2, 3]), (10, 8)), root / f"annotations/trimaps/{name}.png")
        (root / "annotations" / "trimaps" / f"._{name}.png").write_bytes(b"\0\5\x16\7")
        lines[part].append(f"{name} {i % 37 + 1} 1 1\n")
    save(noise(10, 8), root / "images" / "Abyssinian_99.jpg")
    for part, found in lines.items():
        (root / "annotations" / f"{part}.txt").write_text("".join(found))
    (root / "annotations" / "list.txt").write_text("#Image CLASS-ID SPECIES BREED ID\n")
    return root


def test_pets_map_trimaps_and_hold_out_every_tenth_line(pet_tree):
    data = MaskFolderData(str(pet_tree), layout="pets")
    assert data.class_names == ("background", "pet")
    assert {split: len(pairs) for split, pairs in data.pairs.items()} == {"train": 18, "val": 2, "test": 4}
    assert [pair.name for pair in data.pairs["val"]] == ["Abyssinian_9.jpg", "Abyssinian_19.jpg"]
    names = {split: {pair.name for pair in pairs} for split, pairs in data.pairs.items()}
    assert len(set.union(*names.values())) == 24
    for loader in (data.val_dataloader(), data.test_dataloader()):
        for name, target in targets(loader).items():
            stored = np.asarray(Image.open(pet_tree / "annotations" / "trimaps" / name.replace(".jpg", ".png")))
            assert (target == np.array([-1, 1, 0, 255])[stored]).all()
    said = data.protocol()
    assert said["val split"] == "every 10th line of trainval.txt" and said["labels"].startswith(
        "1 -> 1, 2 -> 0, 3 -> 255"
    )
    assert [batch["name"][0] for batch in data.predict_dataloader()] == [pair.name for pair in data.pairs["test"]]


def test_the_border_may_be_a_class_of_its_own(pet_tree):
    labels = Labels(class_names=("pet", "background", "border"), mapping={1: 0, 2: 1, 3: 2})
    data = MaskFolderData(str(pet_tree), labels, layout="pets")
    assert data.num_classes == 3 and data.protocol()["labels"] == "1 -> 0, 2 -> 1, 3 -> 2, others refused"
    assert {int(label) for target in targets(data.test_dataloader()).values() for label in target.flat} == {0, 1, 2}


def test_an_excluded_pet_moves_no_other_one_between_the_splits(pet_tree, tmp_path):
    listed = tmp_path / "exclude.txt"
    listed.write_text("images/great_pyrenees_0.jpg\nannotations/trimaps/Abyssinian_9.png\n")
    data = MaskFolderData(str(pet_tree), layout="pets", exclude=str(listed))
    assert [pair.name for pair in data.pairs["val"]] == ["Abyssinian_19.jpg"]
    assert len(data.pairs["train"]) == 17 and data.protocol()["excluded"] == 2


def test_a_trimap_with_another_value_names_the_file(pet_tree, save):
    path = pet_tree / "annotations" / "trimaps" / "Abyssinian_1.png"
    save(np.zeros((10, 8), np.uint8), path)
    refused(lambda: MaskFolderData(str(pet_tree), layout="pets"), path, "label 0 in 80 pixels", "mapping knows 1, 2, 3")
