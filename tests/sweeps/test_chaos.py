"""Any process of a sweep may die at any moment: no finished trial is lost, none starts again, and n are done."""

import contextlib
import csv
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from nala_platform.sweeps.folder import open_sweep
from nala_platform.sweeps.storage import quiet
from optuna.trial import TrialState

quiet()
NALA = str(Path(sys.executable).with_name("nala"))
STEPS = 18  # of a trial
STUDY = {
    "title": "chaos",
    "task": "cls",
    "max_retries": 100,
    "pruner": None,
    "overrides": [
        *("--data.batch_size=8", "--trainer.max_epochs=6", "--trainer.limit_train_batches=3"),
        *("--trainer.limit_val_batches=1", "--trainer.limit_test_batches=1", "--trainer.log_every_n_steps=1"),
        *("--checkpoint.every_n_steps=1", "--trainer.num_sanity_val_steps=0"),
    ],
    "space": {"model.optimizer.lr": {"float": {"low": 1e-4, "high": 1e-2, "log": True}}},
}


def children() -> dict[int, list[int]]:
    """Of every process that lives."""
    found: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] not in "ZX":
            found.setdefault(int(fields[1]), []).append(int(path.parent.name))
    return found


def victims(parent: int) -> dict[str, list[int]]:
    """The processes of a sweep by what they are."""
    tree = children()
    workers = [one for one in tree.get(parent, []) if b"sweeps.worker" in Path(f"/proc/{one}/cmdline").read_bytes()]
    return {"parent": [parent], "worker": workers, "trial": [one for worker in workers for one in tree.get(worker, [])]}


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen([NALA, "sweep", *words], cwd=folder, stdout=output, stderr=output)


def wait_for_a_checkpoint(folder: Path, since: float, seconds: float) -> None:
    """Until a trial has saved something: processes that are killed while they import have nothing to lose."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for path in folder.glob("runs/sweeps/*/trials/*/checkpoints/last.ckpt"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime > since:
                    return
        time.sleep(0.05)


def torment(folder: Path, words: list[str], kills: int, seed: int) -> dict[str, int]:
    """Run a sweep to its end through ``kills`` kills; how many struck whom."""
    generator, struck = random.Random(seed), {"parent": 0, "worker": 0, "trial": 0}
    process = start(folder, *words)
    while sum(struck.values()) < kills or process.poll() != 0:  # the last kill may be the parent's
        if process.poll() is not None:
            assert process.returncode == -signal.SIGKILL, (folder / "output.txt").read_text()
            process = start(folder, *words)
        if sum(struck.values()) < kills:
            wait_for_a_checkpoint(folder, since=time.time(), seconds=40.0)
            time.sleep(generator.uniform(0.0, 1.0))
            kind = generator.choices(["parent", "worker", "trial"], [1, 2, 2])[0]
            if alive := victims(process.pid)[kind]:
                os.kill(generator.choice(alive), signal.SIGKILL)
                struck[kind] += 1
                if kind == "parent":
                    process.wait()
        else:
            time.sleep(0.5)
    return struck


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("storage", "count", "kills"),
    [
        pytest.param("journal", 6, 6, marks=pytest.mark.slow),
        pytest.param("journal", 12, 10, marks=pytest.mark.campaign),
        pytest.param("postgres", 12, 10, marks=pytest.mark.campaign),
    ],
)
def test_a_sweep_under_fire_finishes_exactly_its_trials(storage: str, count: int, kills: int, request, tmp_path: Path):
    """S4, S5, S6, S8: workers, trials and the parent are killed at random, and the same command is given again."""
    (tmp_path / "chaos.yaml").write_text(yaml.safe_dump({**STUDY, "n_trials": count}))
    words = ["chaos.yaml", "--workers", "3"]
    if storage == "postgres":
        words += ["--storage", request.getfixturevalue("postgres")]
    struck = torment(tmp_path, words, kills, seed=1)  # whose first moves are against all three kinds
    sweep = open_sweep(tmp_path / "runs" / "sweeps" / "chaos-cls")
    trials = sweep.trials().all()
    print(f"{storage}: killed {struck}; attempts {[len(trial.user_attrs['attempts']) for trial in trials]}")
    assert [trial.number for trial in trials] == list(range(count))
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert len({trial.params["model.optimizer.lr"] for trial in trials}) == count
    for trial in trials:
        run = sweep.folder / trial.user_attrs["folder"]
        assert [int(row["step"]) for row in rows(run)] == list(range(STEPS + 1))  # every step once, then the test
        assert sorted(trial.intermediate_values) == list(range(3, STEPS + 1, 3))
        assert trial.value == max(float(row["val/top1"]) for row in rows(run) if row["val/top1"])
        attempts = trial.user_attrs["attempts"]
        assert all(first["end"] <= second["start"] for first, second in itertools.pairwise(attempts))
    interrupted = [trial for trial in trials if len(trial.user_attrs["attempts"]) > 1]
    assert interrupted
    went_on = sum("resuming" in (sweep.folder / f"trials/{one.number:05d}.log").read_text() for one in interrupted)
    assert went_on > 0
    before = (sweep.folder / "sweep.yaml").stat().st_mtime
    assert start(tmp_path, *words).wait() == 0  # a full study is a no-op
    assert [trial.user_attrs["attempts"] for trial in sweep.trials().all()] == [
        t.user_attrs["attempts"] for t in trials
    ]
    assert before


@pytest.mark.campaign
def test_an_interrupted_trial_ends_as_one_that_was_left_alone(tmp_path: Path):
    """S6: the very log, step by step, of `nala fit` with the same words."""
    study = {**STUDY, "n_trials": 1}
    (tmp_path / "chaos.yaml").write_text(yaml.safe_dump(study))
    words = ["chaos.yaml"]
    process = start(tmp_path, *words)
    run = tmp_path / "runs" / "sweeps" / "chaos-cls" / "trials" / "00000"
    while not (run / "checkpoints" / "last.ckpt").exists():
        time.sleep(0.05)
    time.sleep(0.5)
    (worker,) = victims(process.pid)["worker"]
    os.kill(worker, signal.SIGKILL)
    assert process.wait() == 0, (tmp_path / "output.txt").read_text()
    (trial,) = open_sweep(run.parent.parent).trials().all()
    assert [attempt["exit"] for attempt in trial.user_attrs["attempts"]] == ["owner died", "exit code 0"]
    rate = f"--model.optimizer.lr={trial.params['model.optimizer.lr']}"
    fit = ["fit", "--task", "cls", *study["overrides"], rate, "--folder", "alone"]
    subprocess.run([NALA, *fit], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "alone" / "metrics.csv").read_bytes() == (run / "metrics.csv").read_bytes()
