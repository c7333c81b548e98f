"""A score says what it means, and is the same again, whatever the batch size and the number of processes."""

import json
from pathlib import Path

import pytest
from runs import run_group

ALL = ("--trainer.limit_val_batches", "1.0", "--trainer.callbacks", "null", "--trainer.accelerator", "cpu")
# what a reader needs to compare a score of the task with another one
STATED = {
    "cls": {"images", "preprocessing", "label names"},
    "seg": {"images", "ignore_index", "inference", "label names", "classes without a true pixel"},
    "sr": {"scale", "low resolution"},
    "lm": {"tokenizer", "context", "stride"},
}


def summary(folder: Path, name: str) -> dict:
    return json.loads((folder / name / "summary.json").read_text())


@pytest.mark.parametrize("task", STATED)
def test_a_run_validates_again_alike_and_says_how(task: str, zygote, straight, tmp_path: Path):
    run = str(straight(task).folder)
    sizes = ("8",) if task == "sr" else ("8", "8", "5") if task in ("cls", "seg") else ("8", "5")
    for place, size in enumerate(sizes):
        zygote.run(tmp_path, "validate", run, *ALL, "--data.batch_size", size, "--folder", str(place))
    first = summary(tmp_path, "0")
    for place in range(1, len(sizes)):
        assert summary(tmp_path, str(place))["metrics"] == pytest.approx(first["metrics"], rel=1e-6, nan_ok=True)
    if sizes[:2] == ("8", "8"):
        assert str(summary(tmp_path, "1")["metrics"]) == str(first["metrics"])  # to the bit; NaN too
    protocol = first["protocol"]
    assert protocol.keys() >= STATED[task] | {"data", "scores", "items", "scored"}
    assert protocol["scored"] == "all" and protocol["items"] > 0


def test_a_part_of_a_split_is_no_score_of_it(zygote, straight, tmp_path: Path):
    words = ("--trainer.limit_val_batches", "2", "--data.batch_size", "8", "--trainer.callbacks", "null")
    zygote.run(tmp_path, "validate", str(straight("cls").folder), *words, "--folder", "few")
    assert summary(tmp_path, "few")["protocol"]["scored"] == "2 of 23 batches of each process"  # of 180 images


@pytest.mark.slow
@pytest.mark.parametrize("task", STATED)
def test_two_processes_validate_as_one(task: str, zygote, straight, tmp_path: Path):
    words = ("validate", str(straight(task).folder), *ALL)
    zygote.run(tmp_path, *words, "--folder", "one")
    run_group(zygote, tmp_path, 2, *words, "--folder", "two")
    one, two = summary(tmp_path, "one"), summary(tmp_path, "two")
    assert two["metrics"] == pytest.approx(one["metrics"], rel=1e-6, nan_ok=True)
    assert two["protocol"] == one["protocol"]
