"""Options of Lightning that put another loader or sampler in the place of ours; entries that a checkpoint lacks."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Interrupt, Killed, Points, TinyData, TinyTask, assert_equal, fit

from nala_platform.callbacks.bad_samples import BadSamples
from nala_platform.data.problems import BadFileError, Problem
from nala_platform.errors import StoppedError, UserError
from nala_platform.resumption import to_score
from nala_platform.runs.checkpoint_file import check


@pytest.mark.parametrize(
    "options",
    [
        {"overfit_batches": 3},
        {"overfit_batches": 0.5},
        {"reload_dataloaders_every_n_epochs": 1},
        {"reload_dataloaders_every_n_epochs": 2},
        {"limit_train_batches": 0.7},
        {"limit_train_batches": 4, "limit_val_batches": 0.5},
    ],
    ids=str,
)
def test_a_stopped_run_sees_the_same_samples(options: dict[str, Any], tmp_path: Path):
    """Also in the epochs that come after the one that was interrupted."""
    options = {**options, "max_epochs": 3, "val_check_interval": 2}
    straight, _ = fit(tmp_path / "straight", **options)
    seen: list[list[str]] = []
    for interrupt in (Interrupt("on_train_batch_end", 2), Interrupt("on_train_batch_end", 3)):
        model = TinyTask()
        with pytest.raises(StoppedError):
            fit(tmp_path / "stopped", interrupt, make=partial(_known, model), **options)
        seen += model.names
    model = TinyTask()
    fit(tmp_path / "stopped", make=partial(_known, model), **options)
    assert seen + model.names == straight.names
    assert_equal(tmp_path / "straight", tmp_path / "stopped")


def _known(model: TinyTask) -> TinyTask:
    """A model that was made outside, with the weights that one made inside would have."""
    torch.manual_seed(0)
    model.load_state_dict(TinyTask().state_dict())
    torch.manual_seed(0)
    TinyTask()
    return model


def test_overfitting_repeats_the_first_batches_of_the_first_epoch(tmp_path: Path):
    model, _ = fit(tmp_path, overfit_batches=3, max_epochs=3)
    first = model.names[:3]
    assert model.names == first * 3 and len({name for batch in first for name in batch}) == 12
    assert all(name.startswith("0:") for batch in first for name in batch)
    shuffled, _ = fit(tmp_path / "shuffled", limit_train_batches=3, max_epochs=1)
    assert first == shuffled.names


def test_a_sampler_that_would_share_out_the_shares_is_refused():
    data = TinyData()
    connector = type("Connector", (), {"use_distributed_sampler": True})()
    data.trainer = type("Trainer", (), {"world_size": 2, "global_rank": 0, "_accelerator_connector": connector})()
    with pytest.raises(UserError, match=r"use_distributed_sampler is true.*set it to false"):
        data.train_dataloader()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its first epoch, behind a checkpoint."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    with pytest.raises(Killed):
        fit(folder, Interrupt("on_before_backward", 4, 9), val_check_interval=2)
    return folder


@pytest.mark.parametrize(
    ("place", "entry"),
    [
        ((), "state_dict"),
        ((), "current_model_state"),
        ((), "averaging_state"),
        ((), "optimizer_states"),
        ((), "lr_schedulers"),
        ((), "loops"),
        ((), "global_step"),
        ((), "callbacks"),
        ((), "train_loss"),
        (("callbacks",), "RunCheckpoint"),
        (("callbacks",), "EMA"),
        (("nala",), "position"),
        (("nala",), "random"),
        (("nala",), "log"),
        (("nala", "position"), "batch"),
        (("nala", "random", 0), "torch"),
        (("loops", "fit_loop"), "epoch_loop.batch_progress"),
        (("optimizer_states", 0), "param_groups"),
    ],
    ids=str,
)
def test_an_entry_that_is_missing_or_of_another_type_is_named(place, entry: str, killed: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    last = run / "checkpoints" / "last.ckpt"
    whole = torch.load(last, weights_only=True)
    log = (run / "metrics.csv").read_bytes()
    named = "/".join(map(str, (*place, entry)))
    for change, said in (("gone", "is missing"), ("renamed", "is missing"), ("text", "is a str, not a")):
        broken = torch.load(last, weights_only=True) if change != "gone" else whole
        inner = broken
        for key in place:
            inner = inner[key]
        value = inner.pop(entry, None)
        if change == "renamed":
            inner[f"{entry}_of_old"] = value
        if change == "text":
            inner[entry] = "text"
        torch.save(broken, last)
        with pytest.raises(UserError, match=f"{last} is incomplete: {named} {said}") as caught:
            fit(run)
        assert "\n" not in str(caught.value)
    assert (run / "metrics.csv").read_bytes() == log


def test_weights_that_are_no_tensors_are_named(killed: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    last = run / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(last, weights_only=True)
    checkpoint["state_dict"]["network.0.weight"] = [1.0]
    torch.save(checkpoint, last)
    with pytest.raises(UserError, match=r"state_dict/network\.0\.weight is a list, not a tensor"):
        fit(run)


def test_an_average_is_not_taken_for_the_weights(killed: Path, tmp_path: Path):
    shutil.copytree(killed, tmp_path / "run")
    with pytest.raises(UserError, match=r"holds an average .*current_model_state.*give --ema.decay as it was"):
        fit(tmp_path / "run", decay=None)


def test_a_checkpoint_of_plain_lightning_needs_no_entry_of_ours(killed: Path, tmp_path: Path, capsys):
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    last = run / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(last, weights_only=True)
    for entry in ("nala", "train_loss", "schedule_start", "current_model_state", "averaging_state", "accumulated"):
        checkpoint.pop(entry, None)
    torch.save(checkpoint, last)
    fit(run, max_epochs=1)
    assert "another program wrote this checkpoint" in capsys.readouterr().out
    assert check(last)["step"] > 2


def test_without_a_whole_best_checkpoint_the_latest_is_scored_and_named(killed: Path, tmp_path: Path, capsys):
    run = tmp_path / "run"
    assert to_score(run) is None
    shutil.copytree(killed, run)
    checkpoints = run / "checkpoints"
    assert to_score(run) == checkpoints / "best.ckpt" and not capsys.readouterr().err
    content = (checkpoints / "best.ckpt").read_bytes()
    (checkpoints / "best.ckpt").write_bytes(content[: len(content) // 2])
    assert to_score(run) == checkpoints / "last.ckpt"
    assert "best.ckpt is damaged" in capsys.readouterr().err
    (checkpoints / "best.ckpt").unlink()
    assert to_score(run) == checkpoints / "last.ckpt"
    said = f"nala: warning: {checkpoints / 'best.ckpt'} is missing; the test runs on last.ckpt, the latest state\n"
    assert capsys.readouterr().err == said


def test_rows_of_the_log_that_are_gone_are_said(killed: Path, tmp_path: Path, capsys):
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    (run / "metrics.csv").unlink()
    fit(run, max_epochs=1)
    assert "metrics.csv has 0 of the 2 rows that were logged before the checkpoint" in capsys.readouterr().err


class BadPoints(Points):
    def __getitem__(self, draw):
        if draw.index in (3, 7):
            raise BadFileError(Problem("unreadable", Path(f"{draw.index}.png"), "cannot be read"))
        return super().__getitem__(draw)


class BadData(TinyData):
    def items(self, split):
        return BadPoints(self.size) if split == "train" else super().items(split)


def test_a_replaced_sample_is_counted_once_wherever_the_run_was_stopped(tmp_path: Path):
    """Also one of the batch that comes after the checkpoint."""
    straight = BadSamples(2)
    fit(tmp_path / "straight", straight, data=BadData())
    assert straight.found()["replaced"] == 4
    for time in (1, 2, 3, 4):
        folder = tmp_path / str(time)
        with pytest.raises(StoppedError):
            fit(folder, BadSamples(2), Interrupt("on_train_batch_end", time), data=BadData())
        resumed = BadSamples(2)
        fit(folder, resumed, data=BadData())
        assert resumed.found() == straight.found()
