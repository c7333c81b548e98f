"""Wherever a run is stopped, by a signal or killed after a save, it ends as the run that nothing stopped."""

import contextlib
import csv
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from nala_platform.tasks.base import Step
from safetensors.torch import load_file
from tiny import Interrupt, Killed, TinyTask, assert_equal, fit

from nala_platform.errors import StoppedError
from nala_platform.runs.checkpoint_file import read_note
from nala_platform.verify import difference

ACROSS = {"check_val_every_n_epoch": None}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "validations within epochs": {"val_check_interval": 2},
    "a share of an epoch": {"val_check_interval": 0.4, "accumulate_grad_batches": 2},
    "validations within steps": {"val_check_interval": 2, "accumulate_grad_batches": 4},
    "several validations a step": {"val_check_interval": 1, "accumulate_grad_batches": 4, "decay": None},
    "validations across epochs": {**ACROSS, "val_check_interval": 5, "accumulate_grad_batches": 4},
    "a validation at the last step": {"val_check_interval": 2, "max_steps": 8},
    "one in the last, incomplete step": {"limit_train_batches": 5, "accumulate_grad_batches": 3, "max_steps": 3},
    "several best": {"val_check_interval": 1, "accumulate_grad_batches": 3, "checkpoint": {"keep_best": 3}},
    "every other epoch": {"check_val_every_n_epoch": 2, "checkpoint": {"every_n_steps": 2}},
}


def stopped_and_resumed(folder: Path, settings: dict[str, Any], *interrupts: Interrupt) -> int:
    """Interrupt a run by each in turn and let it end; how many have struck."""
    struck = 0
    for interrupt in interrupts:
        try:
            fit(folder, interrupt, **settings)
        except (StoppedError, Killed):
            struck += 1
    fit(folder, **settings)
    return struck


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_signal_anywhere_changes_nothing(settings: dict[str, Any], tmp_path: Path):
    """In a training batch, at the start and in the midst of a validation, in the test."""
    fit(tmp_path / "straight", **settings)
    for hook, times in (
        ("on_train_batch_end", (1, 6)),  # which is the last of an epoch
        ("on_validation_batch_start", (2, 3, 5)),
        ("on_test_batch_start", (1,) * (not settings)),
    ):
        for time in times:
            folder = tmp_path / f"{hook}{time}"
            struck = stopped_and_resumed(folder, settings, Interrupt(hook, time))
            assert struck or time > 2
            assert_equal(tmp_path / "straight", folder)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_kill_after_any_save_changes_nothing(settings: dict[str, Any], tmp_path: Path):
    """Between a save and the next: at the start of any batch, which is behind the save if one was due."""
    fit(tmp_path / "straight", **settings)
    kills = [Interrupt("on_before_backward", time, signal.SIGKILL) for time in (3, 2, 5)]
    assert stopped_and_resumed(tmp_path / "killed", settings, *kills) > 1
    assert_equal(tmp_path / "straight", tmp_path / "killed")


def test_a_checkpoint_judged_best_within_a_step_can_be_resumed(tmp_path: Path):
    settings = {"val_check_interval": 2, "accumulate_grad_batches": 4, "max_epochs": 1}
    fit(tmp_path / "straight", **settings)
    for time in (3, 5):  # behind the first and second validation; the second is of the weights after the only step
        folder = tmp_path / str(time)
        with pytest.raises(Killed):
            fit(folder, Interrupt("on_before_backward", time, signal.SIGKILL), **settings)
        note = read_note(folder / "checkpoints" / "best.ckpt")
        assert note["batch"] in (2, 4)
        for name in ("last", "previous"):
            (folder / "checkpoints" / f"{name}.ckpt").unlink(missing_ok=True)
        fit(folder, **settings)
        (folder / "checkpoints" / "previous.ckpt").unlink(missing_ok=True)
        (tmp_path / "straight" / "checkpoints" / "previous.ckpt").unlink(missing_ok=True)
        assert_equal(tmp_path / "straight", folder)


def test_a_validation_that_the_clock_called_for_runs_after_the_resume(tmp_path: Path):
    """Neither the interval nor the step says that one is due there."""
    settings = {"val_check_interval": "00:00:00:00", **ACROSS, "max_steps": 4}
    with pytest.raises(StoppedError):
        fit(tmp_path, Interrupt("on_validation_batch_start", 5), **settings)
    assert read_note(tmp_path / "checkpoints" / "last.ckpt")["validating"]
    first = Order()
    fit(tmp_path, first, **{**settings, "val_check_interval": "01:00:00:00"})
    assert first.seen == ["validation", "train"]


SLOW = partial(TinyTask, optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1))


@pytest.mark.parametrize("precision", ["bf16-true", "16-true", "64-true", "bf16-mixed"])
def test_the_average_is_in_float32_and_no_validation_rounds_it(precision: str, tmp_path: Path):
    """Whatever the weights are in; and the run can be resumed to the bit."""
    settings = {"precision": precision, "val_check_interval": 2, "accumulate_grad_batches": 2}
    fit(tmp_path / "straight", make=SLOW, **settings)
    with pytest.raises(StoppedError):
        fit(tmp_path / "stopped", Interrupt("on_validation_batch_start", 3), make=SLOW, **settings)
    fit(tmp_path / "stopped", make=SLOW, **settings)
    assert_equal(tmp_path / "straight", tmp_path / "stopped")
    fit(tmp_path / "few", make=SLOW, **{**settings, "val_check_interval": 6})
    many, few = (load(tmp_path / run) for run in ("straight", "few"))
    assert difference(many["state_dict"], few["state_dict"]) is None
    assert {value.dtype for value in many["state_dict"].values()} == {torch.float32, torch.int64}
    kinds = {"bf16-true": torch.bfloat16, "16-true": torch.float16, "64-true": torch.float64}
    plain = many["current_model_state"]["network.0.weight"]
    assert plain.dtype == kinds.get(precision, torch.float32)
    average = load_file(tmp_path / "straight" / "checkpoints" / "model.safetensors")
    assert average["0.weight"].dtype == torch.float32 and not torch.equal(average["0.weight"], plain.float())
    TinyTask().network.load_state_dict(average)


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_weights_of_any_precision_resume_without_an_average(precision: str, tmp_path: Path):
    settings = {"precision": precision, "decay": None}
    fit(tmp_path / "straight", make=SLOW, **settings)
    interrupt = Interrupt("on_train_batch_end", 4)
    with pytest.raises(StoppedError):
        fit(tmp_path / "stopped", interrupt, make=SLOW, **settings)
    fit(tmp_path / "stopped", make=SLOW, **settings)
    assert_equal(tmp_path / "straight", tmp_path / "stopped")


def load(run: Path) -> dict[str, Any]:
    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)


class Order(Callback):
    """What comes first, and what then."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_validation_start(self, trainer, pl_module):
        self.seen += ["validation"] * (not trainer.sanity_checking)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if self.seen[-1:] != ["train"]:
            self.seen.append("train")


def test_each_validation_within_a_step_has_its_row(tmp_path: Path):
    fit(tmp_path, val_check_interval=1, accumulate_grad_batches=3, limit_train_batches=6, max_epochs=1)
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows if row["val/loss"]] == ["0", "0", "0", "1", "1", "1"]
    assert [row["step"] for row in rows if row["train/loss_step"]] == ["0", "1"]


class Sum(TinyTask):
    """The gradient of its one weight is minus the mean of the batch: a step of plain SGD adds the mean."""

    def __init__(self) -> None:
        super().__init__(
            torch.nn.Linear(1, 1, bias=False),
            lambda groups: torch.optim.SGD(groups, lr=1.0),
            lambda made, steps: torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1.0),
        )
        torch.nn.init.zeros_(self.network.weight)
        self.means: list[float] = []

    def training_step(self, batch, batch_idx):
        self.means.append(float(batch["x"].mean()))
        return -(self.network.weight * batch["x"].mean()).sum()

    def itself(self) -> "Sum":
        return self

    def step(self, batch):
        return Step(torch.zeros(()), torch.zeros(4, 3), batch["target"], 4)

    def on_train_epoch_end(self):
        """It keeps no loss."""


@pytest.mark.parametrize(
    ("options", "windows"),
    [
        ({"accumulate_grad_batches": 4}, [4, 2]),
        ({"accumulate_grad_batches": 3}, [3, 3]),
        ({"accumulate_grad_batches": 3, "limit_train_batches": 4}, [3, 1]),
        ({"accumulate_grad_batches": 8}, [6]),
        ({"accumulate_grad_batches": 4, "max_epochs": 2, "max_steps": 3}, [4, 2, 4]),
        ({"accumulate_grad_batches": 4, "precision": "bf16-mixed"}, [4, 2]),
    ],
)
def test_a_gradient_is_the_mean_over_the_batches_that_are_there(options: dict, windows: list[int], tmp_path: Path):
    settings = {"max_epochs": 1, "gradient_clip_val": None, "limit_val_batches": 0, "decay": None, **options}
    model, _ = fit(tmp_path, make=Sum, **settings)
    wanted, left = 0.0, list(model.means)
    for window in windows:
        wanted += sum(left[:window]) / window
        del left[:window]
    assert not left
    trained = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]["network.weight"]
    assert float(trained) == pytest.approx(wanted, rel=1e-5)


def test_a_resume_with_another_accumulation_weighs_each_batch_alike(tmp_path: Path):
    """Two batches of a step of four are done; with steps of three, one more makes it complete."""
    settings = {"gradient_clip_val": None, "limit_val_batches": 1, "decay": None, "max_epochs": 1}
    means = []
    for acc, interrupts in ((4, [Interrupt("on_train_batch_end", 2)]), (3, [])):
        model = Sum()
        with contextlib.suppress(StoppedError):
            fit(tmp_path, *interrupts, make=partial(Sum.itself, model), accumulate_grad_batches=acc, **settings)
        means += model.means
    assert len(means) == 6
    trained = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]["network.weight"]
    assert float(trained) == pytest.approx(sum(means[:3]) / 3 + sum(means[3:]) / 3, rel=1e-5)
