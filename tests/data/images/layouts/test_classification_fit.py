"""The recipes as a person types them, on tiny trees: real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NALA = str(Path(sys.executable).with_name("nala"))
TINY = ["--model.network.backbone=nalaformer_nano", "--data.pixels.size=32", "--data.batch_size=4"]
TINY += ["--data.num_workers=0", "--config=smoke", "--trainer.accelerator=cpu"]


def nala(folder, *words, code=0):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([NALA, *words], cwd=folder, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stdout + done.stderr
    return done


@pytest.fixture
def run(class_tree, tmp_path):
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


def test_a_wrong_number_of_classes_is_one_line(class_tree, tmp_path):
    words = ["fit", "--task", "cls", "--config", "imagenet", "--data.root", str(class_tree), *TINY]
    text = nala(tmp_path, *words, code=2).stderr
    assert text.splitlines()[-1].startswith(
        "nala: error: the data has num_classes 2, but the model was built with 1000"
    )
    assert text.splitlines()[-1].endswith("add --model.network.num_classes 2")


@pytest.mark.campaign
def test_a_run_with_repeated_augmentation_resumes_to_the_bit(class_tree, tmp_path):
    words = ["verify-resume", "--task", "cls", "--config", "imagenet", "--data.root", str(class_tree), *TINY]
    words += ["--model.network.num_classes=2", "--data.augment.copies=3"]
    assert "equal to the bit" in nala(tmp_path, *words).stdout
