"""The recipes as a person types them, on tiny trees: real processes."""

import json

import pytest

TINY = ["--model.network.backbone=nalaformer_nano", "--data.pixels.size=32", "--data.batch_size=4"]
TINY += ["--data.num_workers=0", "--config=smoke", "--trainer.accelerator=cpu"]


@pytest.fixture(scope="module")
def nala(zygote):
    """``nala(folder, *words, code=0)``: the command, and what it printed."""
    return zygote.call


@pytest.fixture
def run(nala, class_tree, tmp_path):
    words = ["fit", "--task", "cls", "--config", "imagenet", "--data.root", str(class_tree), *TINY]
    nala(tmp_path, *words, "--model.network.num_classes=2", "--data.augment.copies=3", "--folder=run")
    return tmp_path / "run"


def test_the_imagenet_recipe_trains_and_states_its_protocol(run, class_tree):
    summary = json.loads((run / "summary.json").read_text())
    protocol = summary["protocol"]
    assert (protocol["layout"], protocol["found"], protocol["classes"]) == ("imagenet", "folders", 2)
    assert protocol["images"] == {"train": 16, "val": 6} and protocol["test split"].startswith("val (")
    assert (protocol["crop_pct"], protocol["interpolation"]) == (0.875, "bicubic")
    assert protocol["labels"] == "the sorted names of the folders in train" and protocol["root"] == str(class_tree)
    assert summary["baselines"]["majority class"] == {"top1": 0.5}
    assert summary["steps"] == 6 and 0.0 <= summary["metrics"]["test/top1"] <= 1.0


def test_a_wrong_number_of_classes_is_one_line(nala, class_tree, tmp_path):
    words = ["fit", "--task", "cls", "--config", "imagenet", "--data.root", str(class_tree), *TINY]
    text = nala(tmp_path, *words, code=2).stderr
    assert text.splitlines()[-1].startswith(
        "nala: error: the data has num_classes 2, but the model was built with 1000"
    )
    assert text.splitlines()[-1].endswith("add --model.network.num_classes 2")


@pytest.mark.campaign
def test_a_run_with_repeated_augmentation_resumes_to_the_bit(nala, class_tree, tmp_path):
    words = ["verify-resume", "--task", "cls", "--config", "imagenet", "--data.root", str(class_tree), *TINY]
    words += ["--model.network.num_classes=2", "--data.augment.copies=3"]
    assert "equal to the bit" in nala(tmp_path, *words).stdout
