"""Bad training files: replaced, counted and limited, the same in a resumed run and over workers and processes."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs import run_group, wait_for

from nala_platform.data.order import TrainOrder
from nala_platform.verify import differences

SMALL = (
    *("--trainer.max_epochs", "3", "--trainer.log_every_n_steps", "1", "--checkpoint.every_n_steps", "1"),
    *("--trainer.accelerator", "cpu", "--trainer.num_sanity_val_steps", "0", "--trainer.callbacks", "null"),
    *("--data.pixels.size", "32", "--data.num_workers", "0", "--model.network.num_classes", "2"),
    *("--model.network.backbone", "nalaformer_nano"),
)
BAD = ("train/cat/03.png", "train/dog/05.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for split, count in (("train", 14), ("val", 2)):
        for name in ("cat", "dog"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for i in range(count):
                picture = draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(picture).save(tmp_path / "data" / split / name / f"{i:02d}.png")
    for name in BAD:
        (tmp_path / "data" / name).write_bytes((tmp_path / "data" / name).read_bytes()[:200])
    return tmp_path


def words(run: str, *more: str) -> list[str]:
    data = ["--task", "cls", "--config", "image_folder", "--data.root", "data", "--data.batch_size", "8"]
    return ["fit", *data, *SMALL, "--folder", run, *more]


def counted(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())["bad_samples"]


def test_a_killed_run_goes_on_counting_and_ends_the_same(zygote, folder: Path):
    limit = ("--bad_samples", "2")
    text = zygote.run(folder, *words("straight", *limit))
    for name in BAD:
        assert text.count(f"nala: warning: {folder / 'data' / name}: cannot be read") == 1
    found = counted(folder / "straight")
    assert found["files"] == 2 and found["limit"] == 2 and found["first"] == [str(folder / "data" / n) for n in BAD]
    order = TrainOrder(28, 8, seed=0)
    drawn = 0
    for epoch in range(3):
        order.set_epoch(epoch)
        drawn += sum(draw.index in (3, 14 + 5) for draw in order)
    assert found["replaced"] == drawn > 3
    workers = ("--data.num_workers", "2", "--resume", "auto")
    pid = zygote.start(folder, *words("killed", *limit, *workers))
    wait_for(folder / "killed", 5, 120)
    os.kill(pid, signal.SIGKILL)
    zygote.wait(pid)
    zygote.run(folder, *words("killed", *limit, *workers))
    assert differences(folder / "straight", folder / "killed") == []
    assert counted(folder / "killed") == found


def test_more_bad_files_than_allowed_end_the_run(zygote, folder: Path):
    for limit, ends in (
        ("0", ("cannot be read", "--bad_samples N", "nala check-data", "--data.exclude")),
        ("1", ("2 files of the training data are bad, more than --bad_samples 1", *BAD)),
    ):
        output = f"output-{limit}.txt"
        pid = zygote.start(folder, *words(f"run{limit}", "--bad_samples", limit), output=output)
        assert zygote.wait(pid) == 2
        last = (folder / output).read_text().splitlines()[-1]
        assert last.startswith("nala: error: ") and all(part in last for part in ends), last


def test_evaluation_replaces_nothing(zygote, folder: Path):
    bad = folder / "data" / "val" / "dog" / "01.png"
    bad.write_bytes(b"")
    assert zygote.wait(zygote.start(folder, *words("run", "--bad_samples", "9"))) == 2
    last = (folder / "output.txt").read_text().splitlines()[-1]
    assert "data/val/dog/01.png: the file is empty" in last
    assert "a score counts every sample" in last and "nala check-data" in last


@pytest.mark.slow
def test_two_processes_count_together(zygote, folder: Path):
    zygote.run(folder, *words("one", "--bad_samples", "2"))
    run_group(zygote, folder, 2, *words("two", "--data.batch_size", "4", "--bad_samples", "2"))
    assert counted(folder / "two") == counted(folder / "one")
