"""Resuming as a user says it: what is typed, what is stored, what is broken."""

import csv
import hashlib
import math
import os
import re
import resource
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from runs import assert_same, wait_for, words

from nala_platform.callbacks.resume import _apply_configured_rate
from nala_platform.optim import warmup_cosine
from nala_platform.runs.checkpoint_file import read_note
from nala_platform.runs.folder import STAGED

LAST, PREVIOUS = "checkpoints/last.ckpt", "checkpoints/previous.ckpt"


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def rates(run: Path) -> dict[int, float]:
    return {int(row["step"]): float(row["lr"]) for row in rows(run) if row["lr"]}


def content(run: Path) -> dict[Path, str]:
    """Digests of all files but the killed process's lock and the checkpoint that it may have been writing."""
    files = (path for path in run.rglob("*") if path.is_file() and path.name not in (".lock", STAGED))
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def refusal(zygote, folder: Path, *words: str) -> str:
    """The one line of a command that is refused."""
    assert zygote.wait(zygote.start(folder, *words)) == 2
    text = (folder / "output.txt").read_text()
    assert text.count("\n") == 1 and text.startswith("nala: error: "), text
    return text


def test_a_run_that_was_moved_goes_on_from_its_checkpoint_alone(zygote, straight, run: Path, tmp_path: Path):
    """R7, R12: another place and name, nothing typed but the checkpoint's path."""
    moved = tmp_path / "elsewhere" / "renamed"
    moved.parent.mkdir()
    run.rename(moved)
    assert "resuming elsewhere/renamed/checkpoints/last.ckpt at step" in zygote.run(
        tmp_path, "fit", "--resume", "elsewhere/renamed/checkpoints/last.ckpt"
    )
    steps = [int(row["step"]) for row in rows(moved)]
    assert steps == sorted(set(steps))
    assert_same(straight("cls").folder, moved)


def test_a_run_that_is_finished_is_scored_and_no_more(zygote, straight, run: Path, tmp_path: Path):
    zygote.run(tmp_path, "fit", "--resume", "run")
    (run / "summary.json").unlink()
    assert "is trained to its end, step 15: scoring it again" in zygote.run(tmp_path, "fit", "--resume", "run")
    assert_same(straight("cls").folder, run)


def test_a_run_without_a_checkpoint_begins_anew(zygote, straight, tmp_path: Path):
    pid = zygote.start(tmp_path, *words("cls", "run"))
    while not (tmp_path / "run" / "config.yaml").exists():
        pass
    os.kill(pid, signal.SIGKILL)
    zygote.wait(pid)
    assert not (tmp_path / "run" / LAST).exists()
    (tmp_path / "run" / "metrics.csv").write_text("step,epoch\n0,0\n")  # of steps that no checkpoint knows
    assert "run has no checkpoint yet: the run begins anew" in zygote.run(tmp_path, "fit", "--resume", "run")
    assert_same(straight("cls").folder, tmp_path / "run")


def test_what_is_typed_is_applied_restored_or_refused_and_said(zygote, run: Path, tmp_path: Path):
    """R6, R8."""
    before = rates(run)
    text = zygote.run(
        tmp_path,
        *("fit", "--resume", "run", "--model.optimizer.lr", "0.5", "--model.optimizer.weight_decay", "0.3"),
        *("--trainer.limit_val_batches", "1", "--checkpoint.keep_best", "2"),
    )
    said = {line.split()[1]: line for line in text.splitlines() if line.startswith(("│ model", "│ trainer", "│ check"))}
    assert "restored: --reset lr applies it" in said["model.init_args.optimizer.init_args.lr"]
    assert "restored: --reset optimizer" in said["model.init_args.optimizer.init_args.weight_decay"]
    assert "applied" in said["trainer.limit_val_batches"] and "applied" in said["checkpoint.keep_best"]
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["init_args"]["optimizer"]["init_args"]["lr"] == 2e-3  # what is in force
    assert config["trainer"]["limit_val_batches"] == 1
    assert {step: rates(run)[step] for step in before} == before and max(rates(run).values()) < 0.0021
    assert list((run / "checkpoints").glob("best-step*.ckpt"))


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (
            ("--model.network.attention", "softmax"),
            "attention is None in the run, 'softmax' was asked for (begin a new",
        ),
        (("--seed_everything", "7"), "--reset data begins the epoch again with it"),
        (("--ema.decay", "null"), "ema.decay is 0.99 in the run"),
        (("--task", "seg"), "task is 'cls' in the run"),
        (("--data.batch_size", "3"), "batch_size"),
        (("--trainer.max_epochs", "1"), "trainer.max_epochs is 1, but the run is in or behind epoch 2"),
        (("--trainer.max_steps", "2"), "trainer.max_steps is 2, but the run has done"),
        (("--reset", "lrr"), "did you mean 'lr'?"),
        (("--folder", "other"), "leave --folder away"),
        (("--ckpt_path", "nowhere.ckpt"), "no checkpoint at nowhere.ckpt"),
    ],
)
def test_what_would_make_it_another_run_is_refused(typed, named, zygote, run: Path, tmp_path: Path):
    before = content(run)
    assert zygote.wait(zygote.start(tmp_path, "fit", "--resume", "run", *typed)) == 2
    text = (tmp_path / "output.txt").read_text()
    assert named in text and "Traceback" not in text
    assert content(run) == before  # nothing is lost


def test_the_rate_can_be_reset(zygote, run: Path, tmp_path: Path):
    """R8: the new base, at the same point of the schedule."""
    step = read_note(run / LAST)["step"]
    zygote.run(tmp_path, "fit", "--resume", "run", "--reset", "lr", "--model.optimizer.lr", "0.004")
    stored = yaml.safe_load((run / "config.yaml").read_text())["model"]["init_args"]
    assert stored["optimizer"]["init_args"]["lr"] == 0.004
    for place, rate in rates(run).items():
        base = 2e-3 if place < step else 4e-3
        assert rate == pytest.approx(base * warmup_cosine(place, total_steps=15, warmup_steps=2, final=0.01), rel=1e-6)


@pytest.mark.parametrize("anew", [False, True])
def test_the_rate_of_a_schedule_of_torch_can_be_reset(anew: bool):
    """Also where the optimizer begins anew, at its base rate."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 15)
    for place in range(15):
        if place == 7:
            optimizer.defaults["lr"] = 4e-3
            optimizer.param_groups[0]["lr"] = 4e-3 if anew else optimizer.param_groups[0]["lr"]
            _apply_configured_rate(SimpleNamespace(lr_scheduler_configs=[SimpleNamespace(scheduler=schedule)]))
        base = 2e-3 if place < 7 else 4e-3
        rate = optimizer.param_groups[0]["lr"]
        assert rate == pytest.approx(base / 2 * (1 + math.cos(math.pi * place / 15)), rel=1e-6)
        optimizer.step()
        schedule.step()


def test_the_schedule_can_begin_again(zygote, run: Path, tmp_path: Path):
    step = read_note(run / LAST)["step"]
    zygote.run(tmp_path, "fit", "--resume", "run", "--reset", "scheduler,optimizer", "--model.schedule.warmup", "3")
    for place in range(step, 15):
        factor = warmup_cosine(place - step, total_steps=15 - step, warmup_steps=3, final=0.01)
        assert rates(run)[place] == pytest.approx(2e-3 * factor, rel=1e-6)
    moments = torch.load(run / LAST, weights_only=True)["optimizer_states"][0]["state"]
    assert {float(state["step"]) for state in moments.values()} == {15.0 - step}


def test_a_longer_run_never_warms_up_twice(zygote, straight, tmp_path: Path):
    """R9: along the curve of a run of the new length, behind the warm-up that was; no rate of zero before the end."""
    pid = zygote.start(tmp_path, *words("cls", "run"))
    wait_for(tmp_path / "run", 7, 120)
    os.kill(pid, signal.SIGKILL)
    zygote.wait(pid)
    step = read_note(tmp_path / "run" / LAST)["step"]
    zygote.run(tmp_path, "fit", "--resume", "run", "--trainer.max_epochs", "8")
    found = rates(tmp_path / "run")
    assert sorted(found) == list(range(40))
    for place in range(step, 40):
        factor = warmup_cosine(place, total_steps=40, warmup_steps=2, final=0.01)
        assert found[place] == pytest.approx(2e-3 * factor, rel=1e-6)
    assert min(found.values()) > 0


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(zygote, straight, run: Path, tmp_path: Path):
    """R10."""
    content = bytearray((run / LAST).read_bytes())
    content[len(content) // 2] ^= 1
    (run / LAST).write_bytes(content)
    text = zygote.run(tmp_path, "fit", "--resume", "run")
    assert "nala: warning: run/checkpoints/last.ckpt is damaged: its SHA-256 is not the one" in text
    assert "resuming run/checkpoints/previous.ckpt" in text
    assert_same(straight("cls").folder, run)


def test_a_damaged_configuration_is_one_line(zygote, run: Path, tmp_path: Path):
    for content in (b"", b"\x00\xff\xfe\n" * 50, (run / "config.yaml").read_bytes()[:700]):
        (run / "config.yaml").write_bytes(content)
        assert "run/config.yaml" in refusal(zygote, tmp_path, "fit", "--resume", "run")


def test_another_batch_size_within_an_epoch_draws_each_sample_once(zygote, tmp_path: Path):
    """R1: the place is counted in samples, also when the run is killed once more."""
    (tmp_path / "mine.py").write_text(
        "from lightning.pytorch import Callback\n"
        "class Names(Callback):\n"
        "    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):\n"
        "        with open('names.txt', 'a') as file: print(trainer.global_step, *batch['name'], file=file)\n"
    )
    task = ("fit", "--task", "cls", "--resume", "auto", "--folder", "run", "--trainer.callbacks+", "mine.Names")
    small = (*task, "--trainer.max_epochs", "1", "--checkpoint.every_n_steps", "1", "--trainer.limit_val_batches", "1")
    for size, step in (("32", 4), ("64", 7)):
        pid = zygote.start(tmp_path, *small, "--data.batch_size", size, "--checkpoint.every_n_steps", "2")
        wait_for(tmp_path / "run", step, 120)
        os.kill(pid, signal.SIGKILL)
        zygote.wait(pid)
    zygote.run(tmp_path, *small, "--data.batch_size", "64")
    lines = [line.split() for line in (tmp_path / "names.txt").read_text().splitlines()]
    drawn = {int(step): names for step, *names in lines}  # of a step that was done twice, the one that counts
    names = [name for step in drawn for name in drawn[step]]
    assert len(names) == len(set(names)) >= 1000


def test_when_all_are_damaged_nothing_begins(zygote, run: Path, tmp_path: Path):
    for path in (run / "checkpoints").glob("*.ckpt"):
        path.write_bytes(path.read_bytes()[:1000])
    assert zygote.wait(zygote.start(tmp_path, "fit", "--resume", "run")) == 2
    text = (tmp_path / "output.txt").read_text()
    assert "no whole checkpoint in run" in text and text.count("cut short") >= 4
    assert "is damaged" in refusal(zygote, tmp_path, "fit", "--resume", "run", "--ckpt_path", "best")


def test_one_process_at_a_time_trains_a_run(zygote, straight, run: Path, tmp_path: Path):
    """The second waits, and goes on from what the first had reached when it is gone."""
    first = zygote.start(tmp_path, "fit", "--resume", "run", output="first.txt")
    while f"process {first} " not in (run / ".lock").read_text():  # there is that of the killed one
        time.sleep(0.01)
    second = zygote.start(tmp_path, "fit", "--resume", "run")
    begun = read_note(run / LAST)["step"]
    wait_for(run, begun + 1, 60)
    os.kill(first, signal.SIGKILL)
    assert zygote.wait(first) == -signal.SIGKILL
    assert zygote.wait(second) == 0
    text = (tmp_path / "output.txt").read_text()
    assert int(re.search(r"resuming run/checkpoints/last.ckpt at step (\d+)", text).group(1)) > begun
    assert_same(straight("cls").folder, run)
    assert not (run / ".lock").exists()


@pytest.mark.slow
def test_compiled_and_plain_runs_read_each_other(zygote, run: Path, tmp_path: Path):
    """R14: the same keys, both ways; compiled by a backend that needs no compiler."""
    keys = torch.load(run / LAST, weights_only=True)["state_dict"].keys()
    zygote.run(tmp_path, "fit", "--resume", "run", "--compile", "eager", "--trainer.max_epochs", "2")
    assert torch.load(run / LAST, weights_only=True)["state_dict"].keys() == keys
    text = zygote.run(tmp_path, "fit", "--resume", "run", "--compile", "null", "--trainer.max_epochs", "3")
    assert "compile" in text and read_note(run / LAST)["step"] == 15


def test_a_full_disk_stops_the_run_and_keeps_what_was_saved(zygote, run: Path, tmp_path: Path):
    """A limit on the size of files stands for the disk: the log still fits, the next checkpoint does not."""
    before = (run / LAST).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    pid = zygote.start(tmp_path, "fit", "--resume", "run")
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    assert zygote.wait(pid) == 4
    text = (tmp_path / "output.txt").read_text()
    assert "Traceback" not in text
    assert "nala: error: cannot write the checkpoint run/checkpoints/.new.ckpt: File too large: make room there" in text
    step = read_note(run / LAST)["step"]
    assert f"; then nala fit --resume run resumes the run from last.ckpt of step {step}, which is whole\n" in text
    assert (run / LAST).read_bytes() == before
    assert not list((run / "checkpoints").glob(".*"))
    zygote.run(tmp_path, "fit", "--resume", "run")


def test_a_disk_that_is_full_before_the_first_checkpoint_is_said_to_hold_nothing(zygote, tmp_path: Path):
    pid = zygote.start(tmp_path, *words("cls", "new"))
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    assert zygote.wait(pid) == 4
    text = (tmp_path / "output.txt").read_text()
    assert text.count("nala: error:") == 1 and "Traceback" not in text
    assert text.endswith("make room there; nothing of this run was saved yet, so start it again then\n")
