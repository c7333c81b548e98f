"""What predictions leave on disk, and the pictures of a test, with any number of classes and any name of a file."""

import csv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from nala_platform.callbacks.files import take_files
from nala_platform.callbacks.pictures import ClassificationPictures, SegmentationPictures, colourise, ignored_colour
from nala_platform.callbacks.predictions import ClassificationCSV, SegmentationPNG
from nala_platform.callbacks.skipped import SkippedInputs
from nala_platform.data.images.labels import Labels
from nala_platform.data.problems import Problem
from nala_platform.errors import ExitCode, IncompleteError


def trainer_of(folder, classes, ignore_index=255, **more):
    labels = Labels(num_classes=classes, ignore_index=ignore_index)
    data = SimpleNamespace(
        palette=labels.palette(),
        class_names=labels.class_names,
        ignore_index=ignore_index,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
    )
    facts = {"is_global_zero": True, "num_test_batches": [1], "world_size": 1, "global_rank": 0}
    return SimpleNamespace(default_root_dir=str(folder), datamodule=data, **facts, **more)


def every_class(classes):
    """A mask in which each class has a pixel: ``(20, N)``."""
    return torch.arange(-(-classes // 20) * 20).clamp(max=classes - 1).reshape(20, -1)


@pytest.mark.parametrize("classes", [2, 255, 256, 257, 300, 1000])
def test_a_predicted_mask_holds_the_class_of_each_pixel(tmp_path: Path, classes: int):
    trainer, mask_HW = trainer_of(tmp_path, classes, ignore_index=65535), every_class(classes)
    outputs = {"name": ["a.jpg"], "mask": mask_HW[None]}
    callback = SegmentationPNG(opacity=1.0)
    callback.on_predict_start(trainer, None)
    callback.on_predict_batch_end(trainer, None, outputs, {"image": torch.zeros(1, 3, *mask_HW.shape)}, 0)
    with Image.open(tmp_path / "a.png") as picture, Image.open(tmp_path / "a_overlay.png") as overlay:
        assert picture.mode == ("P" if classes <= 256 else "I;16")
        assert np.array_equal(np.asarray(picture), mask_HW.numpy())
        palette_C3 = np.array(trainer.datamodule.palette)
        assert np.array_equal(np.asarray(overlay), palette_C3[mask_HW.numpy()])


@pytest.mark.parametrize("ignored", [-1, 255, 65535])
@pytest.mark.parametrize("classes", [2, 256, 300])
def test_the_pictures_of_a_test_have_a_colour_for_each_class(tmp_path: Path, classes: int, ignored: int):
    trainer, target_HW = trainer_of(tmp_path, classes, ignore_index=ignored), every_class(classes)
    target_HW[0, 0] = ignored
    callback = SegmentationPictures(count=1)
    batch = {"image": torch.zeros(1, 3, *target_HW.shape), "target": target_HW[None]}
    callback.on_test_batch_end(trainer, None, every_class(classes)[None], batch, 0)
    callback.on_test_end(trainer, None)
    with Image.open(tmp_path / "predictions.png") as picture:
        assert picture.width > 500
    palette = trainer.datamodule.palette
    colour_HW3 = colourise(np.array([[0, classes - 1, classes, -1, 65535]]), palette)
    assert colour_HW3[0].tolist() == [list(palette[0]), list(palette[-1]), *[list(ignored_colour(palette))] * 3]


def test_a_test_without_a_sample_leaves_no_picture(tmp_path: Path):
    trainer = trainer_of(tmp_path, 2)
    for callback in (ClassificationPictures(), SegmentationPictures()):
        callback.on_test_end(trainer, None)
    assert list(tmp_path.iterdir()) == []


def test_no_files_of_one_image_replace_those_of_another(tmp_path: Path):
    names = ["a.jpg", "a.png", "a.png.jpg", "a_overlay.jpg", "deep/a.jpg", "A.jpg", "a.webp", "a.jpg.png", "b..png"]
    found = [take_files(tmp_path, name, (".png", "_overlay.png")) for name in names]
    files = [path for paths in found for path in paths]
    assert len(set(files)) == 2 * len(names) and all(path.is_file() for path in files)
    assert [path.name for path in found[0]] == ["a.png", "a_overlay.png"]
    assert [path.name for path in found[1]] == ["a.png.png", "a.png_overlay.png"]
    # a second process, which knows nothing of the first, and a third one
    again = [take_files(tmp_path, "a.jpg", (".png", "_overlay.png")) for _ in range(2)]
    assert not set(files) & {path for paths in again for path in paths} and again[0] != again[1]


def test_a_table_takes_every_name_of_a_file(tmp_path: Path):
    names = ["a,b.png", 'quote".png', "two\nlines.png", "日本.png", "caf\udce9.png"]  # the last is no UTF-8 on disk
    trainer = trainer_of(tmp_path, 2)
    callback = ClassificationCSV()
    callback.on_predict_start(trainer, None)
    outputs = {"name": names, "class": torch.zeros(5, dtype=torch.int64), "probability": torch.ones(5)}
    callback.on_predict_batch_end(trainer, None, outputs, {}, 0)
    with (tmp_path / "predictions.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        assert [row["file"] for row in csv.DictReader(file)] == names


def test_skipped_inputs_are_counted_and_named_at_the_end(tmp_path: Path):
    problems = [Problem("empty", tmp_path / f"{index}.png", "the file is empty") for index in range(7)]
    loader = SimpleNamespace(skipped=problems)
    trainer = trainer_of(tmp_path, 2, predict_dataloaders=loader)
    callback = SkippedInputs()
    callback.on_predict_batch_end()
    callback.on_predict_end(trainer, None)
    with pytest.raises(IncompleteError) as caught:
        callback.check("out")
    message = str(caught.value)
    assert message.startswith("7 inputs cannot be read and were skipped; the predictions of the others are in out: ")
    assert str(tmp_path / "0.png") in message and "\n" not in message
    assert caught.value.code == ExitCode.INCOMPLETE == 7
    sound = SkippedInputs()
    sound.on_predict_end(trainer_of(tmp_path, 2, predict_dataloaders=SimpleNamespace(skipped=[])), None)
    sound.check("out")
