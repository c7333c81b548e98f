"""Several processes: the same run as one with their global batch, killed and resumed, with more or fewer of them.

The processes are forked here as a launcher would start them; `test_group` has Lightning's own.
"""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runs import COMMON, assert_same, end_group, run_group, start_group, wait_for, words

from nala_platform.runs.checkpoint_file import read_note
from nala_platform.verify import differences

SMALL = (
    *("--trainer.max_epochs", "2", "--trainer.limit_val_batches", "1", "--trainer.limit_test_batches", "1"),
    *("--trainer.log_every_n_steps", "1", "--trainer.num_sanity_val_steps", "0", "--trainer.accelerator", "cpu"),
    *("--trainer.callbacks", "mine.Samples"),
)
MINE = """
import hashlib
from lightning.pytorch import Callback
from nala_platform.data.images.bluemarble import BlueMarbleData
from nala_platform.data.images.digits import DigitsData
from nala_platform.data.images.photos import PhotosData
from nala_platform.data.language.pydocs import PydocsData

class Samples(Callback):
    '''Writes epoch, batch and what each sample of it is, to the bit.'''
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        rows = batch["tokens"] if "tokens" in batch else batch["image"]
        digests = [hashlib.sha256(row.numpy().tobytes()).hexdigest()[:12] for row in rows]
        with open(f"samples-{trainer.global_rank}.txt", "a") as file:
            print(trainer.current_epoch, batch_idx, *digests, file=file)

class Five:
    def __init__(self, items): self.items = items
    def __len__(self): return 5
    def __getitem__(self, draw): return self.items[draw._replace(index=draw.index % len(self.items))]

def five(base):
    class Data(base):
        def items(self, split): return Five(super().items(split))
    Data.__qualname__, Data.__name__, Data.__module__ = base.__name__, base.__name__, __name__
    return Data

DigitsData, BlueMarbleData, PhotosData, PydocsData = map(five, (DigitsData, BlueMarbleData, PhotosData, PydocsData))
"""
LM = ("--data.context", "32", "--model.network.dropout", "0", "--trainer.limit_train_batches", "4")
PLAIN = {  # networks without batch normalisation, which sees its own process's samples alone
    "lm": LM,
    "cls": ("--model.network.backbone", "convnext_atto", "--trainer.limit_train_batches", "4"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def samples(folder: Path, processes: int) -> list[str]:
    """All samples in the order of the global batches, epoch after epoch."""
    lines = [(folder / f"samples-{rank}.txt").read_text().splitlines() for rank in range(processes)]
    found = []
    for step in zip(*lines, strict=True):
        assert len({tuple(line.split()[:2]) for line in step}) == 1
        found += [digest for line in step for digest in line.split()[2:]]
    return found


def column(run: Path, name: str) -> list[float]:
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]


@pytest.mark.parametrize("task", PLAIN)
def test_two_processes_are_one_with_their_global_batch(task: str, zygote, folder: Path):
    typed = ("fit", "--task", task, *SMALL, *PLAIN[task])
    for processes in (1, 2):
        place = folder / str(processes)
        place.mkdir()
        (place / "mine.py").write_text(MINE)
        run_group(zygote, place, processes, *typed, "--folder", "run", "--data.batch_size", str(8 // processes))
    assert len(samples(folder / "1", 1)) == 2 * 4 * 8
    assert samples(folder / "1", 1) == samples(folder / "2", 2)
    for name in ("train/loss_step", "train/loss_epoch"):
        one, two = (column(folder / place / "run", name) for place in ("1", "2"))
        assert two == pytest.approx(one, rel=2e-4)


def test_accumulated_batches_are_the_same_over_processes(zygote, folder: Path):
    """A global batch of 8: four times 2, or twice 2 on two processes."""
    for processes in (1, 2):
        place = folder / str(processes)
        place.mkdir()
        (place / "mine.py").write_text(MINE)
        accumulated = ("--trainer.limit_train_batches", str(16 // processes), "--data.batch_size", "2")
        steps = ("--trainer.accumulate_grad_batches", str(4 // processes))
        run_group(zygote, place, processes, "fit", "--task", "lm", *SMALL, *LM, *accumulated, *steps, "--folder", "run")
    assert samples(folder / "1", 1) == samples(folder / "2", 2)
    one, two = (column(folder / place / "run", "train/loss_epoch") for place in ("1", "2"))
    assert len(one) == 2 and two == pytest.approx(one, rel=2e-4)


@pytest.fixture(scope="session")
def straight_pair(zygote, tmp_path_factory: pytest.TempPathFactory):
    """A task's run on two processes that nothing interrupts."""
    made: dict[str, Path] = {}

    def make(task: str) -> Path:
        if task not in made:
            made[task] = tmp_path_factory.mktemp(task)
            run_group(zygote, made[task], 2, *words(task, "run"))
        return made[task] / "run"

    return make


@pytest.mark.parametrize(
    ("task", "steps"),
    [
        ("cls", [7]),
        pytest.param("lm", [7], marks=pytest.mark.slow),
        pytest.param("seg", [1, 2, 4, 7], marks=pytest.mark.campaign),
        pytest.param("sr", [1, 4, 5, 9], marks=pytest.mark.campaign),
        pytest.param("cls", [0, 2, 5, 8, 11, 14], marks=pytest.mark.campaign),
        pytest.param("lm", [0, 3, 4, 5, 10, 13], marks=pytest.mark.campaign),
    ],
)
def test_a_group_that_is_killed_ends_as_if_it_never_was(task: str, steps: list[int], zygote, straight_pair, folder):
    """Dropout and drop path are on: each process goes on with its own generators."""
    for step in steps:
        pids = start_group(zygote, folder, 2, *words(task, "run"))
        wait_for(folder / "run", step, 120)
        for pid in reversed(pids):
            os.kill(pid, signal.SIGKILL)
        end_group(zygote, folder, pids, -signal.SIGKILL)
    run_group(zygote, folder, 2, *words(task, "run"))
    assert_same(straight_pair(task), folder / "run")


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_another_number_of_processes_goes_on_with_the_same_order(before: int, after: int, zygote, folder: Path):
    """R5."""
    typed = ("--task", "lm", *SMALL, *LM, "--checkpoint.every_n_steps", "1")
    (folder / "whole").mkdir()
    (folder / "whole" / "mine.py").write_text(MINE)
    run_group(zygote, folder / "whole", 1, "fit", *typed, "--folder", "run", "--data.batch_size", "4")
    first = ("fit", *typed, "--folder", "run", "--data.batch_size", str(4 // before), "--trainer.max_steps", "5")
    run_group(zygote, folder, before, *first)
    for path in folder.glob("samples-*.txt"):
        path.unlink()
    again = ("fit", "--resume", "run", "--trainer.max_steps", "-1", "--trainer.devices", str(after))
    text = run_group(zygote, folder, after, *again, code=2)
    assert text.splitlines()[-1].startswith("nala: error: ") and f"--data.batch_size {4 // after}" in text
    text = run_group(zygote, folder, after, *again, "--data.batch_size", str(4 // after))
    assert "the order of the data stays" in text
    assert samples(folder, after) == samples(folder / "whole", 1)[5 * 4 :]


@pytest.mark.parametrize(
    "task", ["cls", "lm", pytest.param("sr", marks=pytest.mark.slow), pytest.param("seg", marks=pytest.mark.campaign)]
)
def test_five_samples_on_two_processes_score_as_on_one(task: str, zygote, straight, folder: Path):
    """G6."""
    name = {"cls": "DigitsData", "seg": "BlueMarbleData", "sr": "PhotosData", "lm": "PydocsData"}[task]
    scores = []
    for processes in (1, 2):
        whole = ["--trainer.limit_test_batches", "1.0", "--folder", str(processes)]
        whole += ["--trainer.callbacks", "null"] if task == "lm" else []  # its multiple choice has a test of its own
        run_group(zygote, folder, processes, "test", str(straight(task).folder), "--data", f"mine.{name}", *whole)
        scores.append(json.loads((folder / str(processes) / "summary.json").read_text())["metrics"])
    assert scores[0] == pytest.approx(scores[1], rel=1e-6, nan_ok=True)


@pytest.mark.campaign
def test_torchrun_makes_one_run_and_goes_on_with_it(folder: Path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    several = ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
    for steps in (4, 15):
        typed = [*words("cls", "run"), *several, "--trainer.max_steps", str(steps)]
        done = subprocess.run(
            [*launcher, "-m", "nala_platform", *typed], cwd=folder, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert read_note(folder / "run" / "checkpoints" / "last.ckpt")["step"] == steps
    assert sorted(path.name for path in folder.iterdir()) == ["mine.py", "run"]
    assert column(folder / "run", "step") == sorted(set(column(folder / "run", "step")))


KILLING = """
import os
import signal
from lightning.pytorch import Callback

class Kill(Callback):
    def on_before_backward(self, trainer, pl_module, loss):
        if "KILL" in os.environ and trainer.is_global_zero and trainer.fit_loop.epoch_loop.batch_idx == 3:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_two_processes_go_on_within_a_step(zygote, tmp_path: Path):
    """From the gradients of each; and both judge the batch statistics of the first, which are those that are saved."""
    (tmp_path / "killing.py").write_text(KILLING)
    typed = (
        *("fit", "--task", "cls", *COMMON, "--trainer.max_epochs", "1", "--trainer.limit_train_batches", "7"),
        *("--data.batch_size", "4", "--data.num_workers", "0", "--model.network.drop_path_rate", "0.2"),
        *("--trainer.accumulate_grad_batches", "4", "--trainer.val_check_interval", "2"),
        *("--trainer.callbacks", "null", "--trainer.callbacks+", "killing.Kill", "--resume", "auto", "--folder"),
    )
    run_group(zygote, tmp_path, 2, *typed, "straight")
    pids = start_group(zygote, tmp_path, 2, *typed, "killed", environment={"KILL": "1"})
    assert zygote.wait(pids[0]) == -signal.SIGKILL and zygote.wait(pids[1]) != 0
    saved = torch.load(tmp_path / "killed" / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["nala"]["position"]["batch"] == 2 and [one["batches"] for one in saved["accumulated"]] == [2, 2]
    run_group(zygote, tmp_path, 2, *typed, "killed")
    assert differences(tmp_path / "straight", tmp_path / "killed") == []
