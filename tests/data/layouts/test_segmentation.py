"""Published layouts of images and masks, on tiny trees in their very formats (FAULTS G3, G5, I1)."""

import numpy as np
import pytest
from PIL import Image

from nala_platform.data.layouts.ade20k import CLASSES
from nala_platform.data.mask_folder import MaskFolderData
from nala_platform.data.views import View
from nala_platform.errors import UserError

STILL = View(crop=16, scale=(1.0, 1.0), hflip=0.0)


def refused(build, *words):
    with pytest.raises(UserError) as caught:
        build()
    message = str(caught.value)
    assert "\n" not in message and all(str(word) in message for word in words), message


def targets(loader):
    return {batch["name"][0]: batch["target"][0].numpy() for batch in loader}


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


def test_a_folder_that_is_no_ade20k_says_what_is_there(tmp_path):
    (tmp_path / "pictures").mkdir()
    refused(
        lambda: MaskFolderData(str(tmp_path), layout="ade20k"),
        "no images/training nor ADEChallengeData2016/images/training (there: pictures)",
    )
