"""ADE20K and Cityscapes on tiny trees in their very formats (FAULTS G3, G5, I1)."""

import numpy as np
import pytest
from PIL import Image
from segmented import refused, targets

from nala_platform.data.images.layouts.ade20k import CLASSES
from nala_platform.data.images.mask_folder import MaskFolderData
from nala_platform.data.images.views import View

STILL = View(crop=16, scale=(1.0, 1.0), hflip=0.0)


@pytest.fixture
def ade(tmp_path, save, noise):
    """ADEChallengeData2016 with a grey and a CMYK JPEG, an EXIF rotation, and labels at both ends."""
    root = tmp_path / "ADEChallengeData2016"
    for split, kind, count in (("training", "train", 3), ("validation", "val", 2)):
        for i in range(1, count + 1):
            stem, image = f"ADE_{kind}_{i:08d}", Image.fromarray(noise(20, 30, i))
            exif = Image.Exif()
            mask = np.random.default_rng(i).choice(np.uint8([0, 1, 75, 150]), (20, 30))
            if i == 1:
                image = image.convert("L")
            elif i == 2:
                image = image.convert("CMYK")
            else:
                exif[0x0112], mask = 6, mask.T
            path = root / "images" / split / f"{stem}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path, exif=exif)
            save(mask, root / "annotations" / split / f"{stem}.png")
    (root / "objectInfo150.txt").write_text("Idx\tRatio\tTrain\tVal\tStuff\tName\n")
    return root


def test_ade20k_shifts_its_labels_once_in_training_and_validation(ade):
    data = MaskFolderData(str(ade), layout="ade20k", batch_size=1, augment=STILL)
    assert data.num_classes == 150 == len(set(CLASSES)) and (CLASSES[0], CLASSES[149]) == ("wall", "flag")
    found = targets(data.val_dataloader())
    assert list(found) == ["validation/ADE_val_00000001.jpg", "validation/ADE_val_00000002.jpg"]
    for name, target in found.items():
        stored = np.asarray(Image.open(ade / "annotations" / name.replace(".jpg", ".png"))).astype(int)
        assert (target == np.where(stored == 0, 255, stored - 1)).all() and {0, 74, 149, 255} == set(target.flat)
    for target in targets(data.train_dataloader()).values():
        assert set(target.flat) == {0, 74, 149, 255}
    assert data.val_dataloader().dataset[0]["image"].shape == (3, 20, 30)


def test_ade20k_states_its_protocol(ade):
    said = MaskFolderData(str(ade.parent), layout="ade20k").protocol()  # the folder around it
    assert said["layout"] == "ade20k" and said["images"] == {"train": 3, "val": 2} and said["classes"] == 150
    assert said["labels"] == "0 -> 255, 1..150 -> 0..149, 255 stays, others refused"
    assert said["test split"].startswith("validation (")


def test_ade20k_predicts_its_validation_images(ade):
    data = MaskFolderData(str(ade), layout="ade20k")
    batches = list(data.predict_dataloader())
    assert [batch["name"] for batch in batches] == [
        ["validation/ADE_val_00000001.jpg"],
        ["validation/ADE_val_00000002.jpg"],
    ]
    assert set(batches[0]) == {"image", "name"}


def test_a_label_beyond_150_names_the_file(ade, save):
    path = ade / "annotations" / "training" / "ADE_train_00000001.png"
    save(np.full((20, 30), 151, np.uint8), path)
    refused(lambda: MaskFolderData(str(ade), layout="ade20k"), path, "label 151 in 600 pixels", "0..150")


@pytest.mark.parametrize("inner", ["", "ADE20K_2021_17_01"])
def test_the_full_ade20k_is_refused_with_the_reason(tmp_path, save, noise, inner):
    root = tmp_path / inner
    scene = root / "images" / "ADE" / "training" / "cultural" / "apse"
    save(noise(8, 8), scene / "ADE_train_00000001.jpg")
    save(noise(8, 8), scene / "ADE_train_00000001_seg.png")
    (root / "index_ade20k.pkl").write_bytes(b"")
    refused(
        lambda: MaskFolderData(str(tmp_path), layout="ade20k"), "full ADE20K", "150 classes", "ADEChallengeData2016"
    )


def test_the_benchmark_beside_the_full_ade20k_is_found(ade):
    (ade.parent / "ADE20K_2021_17_01").mkdir()
    (ade.parent / "ADE20K_2021_17_01" / "index_ade20k.pkl").write_bytes(b"")
    assert len(MaskFolderData(str(ade.parent), layout="ade20k").pairs["train"]) == 3


def test_a_folder_that_is_no_ade20k_says_what_is_there(tmp_path):
    (tmp_path / "pictures").mkdir()
    refused(
        lambda: MaskFolderData(str(tmp_path), layout="ade20k"),
        "no annotations/training nor ADEChallengeData2016/annotations/training (there: pictures)",
    )


# the benchmark's rule, written again: id -> train id, everything else ignored
TRAIN_IDS = {7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9, 23: 10, 24: 11, 25: 12}
TRAIN_IDS |= {26: 13, 27: 14, 28: 15, 31: 16, 32: 17, 33: 18}


def some_ids(seed):
    """Each of 0..44, and 255."""
    return np.random.default_rng(seed).permutation(np.uint8([*range(45), *[255] * 9])).reshape(6, 9)


def street(save, noise, root, kinds, count=2):
    """Cityscapes with masks of the given kinds, made of `some_ids`."""
    for split, city in (("train", "aachen"), ("val", "lindau"), ("test", "bonn")):
        for i in range(count):
            stem = f"{city}_{i:06d}_000019"
            save(noise(6, 9, i), root / "leftImg8bit" / split / city / f"{stem}_leftImg8bit.png")
            ids = some_ids(i)
            folder = root / "gtFine" / split / city
            save(noise(6, 9), folder / f"{stem}_gtFine_color.png")
            save(ids.astype(np.uint16) * 1000, folder / f"{stem}_gtFine_instanceIds.png")
            (folder / f"{stem}_gtFine_polygons.json").write_text("{}")
            for kind in kinds:
                mask = ids if kind == "labelIds" else np.vectorize(lambda k: TRAIN_IDS.get(k, 255))(ids)
                save(mask.astype(np.uint8), folder / f"{stem}_gtFine_{kind}.png")
    return root


@pytest.mark.parametrize("kinds", [["labelIds"], ["labelTrainIds"], ["labelIds", "labelTrainIds"]])
def test_cityscapes_gives_19_classes_whichever_masks_there_are(tmp_path, save, noise, kinds):
    root = street(save, noise, tmp_path, kinds)
    data = MaskFolderData(
        str(root), layout="cityscapes", batch_size=1, augment=View(crop=(6, 9), scale=(1, 1), hflip=0)
    )
    assert data.num_classes == 19 and data.class_names[13] == "car" and data.palette[13] == (0, 0, 142)
    assert data.protocol()["masks"] == f"gtFine, {kinds[-1]}"
    found = targets(data.val_dataloader()) | targets(data.train_dataloader())
    assert sorted(found)[0] == "train/aachen/aachen_000000_000019_leftImg8bit.png" and len(found) == 4
    for name, target in found.items():
        ids = (
            np.random.default_rng(int(name.split("_")[1])).permutation(np.uint8([*range(45), *[255] * 9])).reshape(6, 9)
        )
        assert target.tolist() == [[TRAIN_IDS.get(k, 255) for k in row] for row in ids.tolist()]
    assert [batch["name"][0][:5] for batch in data.predict_dataloader()] == ["bonn/"] * 2


def test_cityscapes_never_mixes_two_kinds_of_masks(tmp_path, save, noise):
    root = street(save, noise, tmp_path, ["labelIds", "labelTrainIds"])
    lonely = root / "gtFine" / "train" / "aachen" / "aachen_000001_000019_gtFine_labelTrainIds.png"
    lonely.unlink()
    refused(
        lambda: MaskFolderData(str(root), layout="cityscapes"),
        "aachen_000001_000019_leftImg8bit.png: has no mask *_gtFine_labelTrainIds.png of the same name in",
    )


def test_cityscapes_without_masks_says_what_to_unpack(tmp_path, save, noise):
    root = street(save, noise, tmp_path, [])
    refused(lambda: MaskFolderData(str(root), layout="cityscapes"), "neither *_gtFine_labelTrainIds.png nor", "unpack")
    refused(
        lambda: MaskFolderData(str(root / "gtFine"), layout="cityscapes"), "no leftImg8bit nor", "there: test, train"
    )


@pytest.mark.parametrize("deep", [False, True])
def test_negative_and_deep_ids_of_cityscapes_are_ignored(tmp_path, save, noise, deep):
    root = street(save, noise, tmp_path, ["labelIds"], count=1)
    ids = np.full((6, 9), 65535 if deep else 255, np.uint16 if deep else np.uint8)
    ids[0, 0] = 26
    save(ids, root / "gtFine" / "val" / "lindau" / "lindau_000000_000019_gtFine_labelIds.png")
    [target] = targets(MaskFolderData(str(root), layout="cityscapes").val_dataloader()).values()
    assert target[0, 0] == 13 and (target.flat[1:] == 255).all()


def test_streets_of_road_and_void_alone_are_no_foreground_at_255(tmp_path, save, noise):
    """G3 is about masks of one's own: where the data set says that 255 is void, it is."""
    root = street(save, noise, tmp_path, ["labelTrainIds"], count=1)
    for path in (root / "gtFine").rglob("*_labelTrainIds.png"):
        save(np.uint8([[0] * 4 + [255] * 5] * 6), path)
    [target] = targets(MaskFolderData(str(root), layout="cityscapes").val_dataloader()).values()
    assert target.tolist() == [[0] * 4 + [255] * 5] * 6
