"""`nala sweep` as a person runs it: several processes a trial, hopeless and failing trials, Ctrl-C, another plan."""

import os
import re
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
SHORT = [
    *("--data.batch_size=8", "--trainer.max_epochs=2", "--trainer.limit_train_batches=3"),
    *("--trainer.limit_val_batches=1", "--trainer.limit_test_batches=1", "--trainer.log_every_n_steps=1"),
    *("--trainer.num_sanity_val_steps=0", "--trainer.accelerator=cpu"),
]
STUDY = {
    "task": "cls",
    "n_trials": 2,
    "overrides": SHORT,
    "space": {"model.optimizer.lr": {"float": {"low": 1e-3, "high": 1e-2, "log": True}}},
}


def sweep(folder: Path, *words: str, code: int = 0, **changes) -> str:
    (folder / "study.yaml").write_text(yaml.safe_dump({**STUDY, **changes}))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [NALA, "sweep", *(words or ["study.yaml"])], cwd=folder, capture_output=True, text=True, env=environment
    )
    assert done.returncode == code and "Traceback" not in done.stderr, done.stdout + done.stderr
    return done.stdout + done.stderr


def trials(folder: Path) -> list:
    return open_sweep(folder / "runs" / "sweeps" / "study-cls").trials().all()


def running(folder: Path) -> list[int]:
    """Processes whose command line names this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.mark.slow
def test_trials_of_two_processes_are_pruned_at_their_first_report(tmp_path: Path):
    """S1, S2, S3: one trial a group, all its processes stop at one step, the next trial starts, nothing is left."""
    printed = sweep(
        tmp_path,
        pruner={"class_path": "ThresholdPruner", "init_args": {"lower": 2.0}},
        overrides=[*SHORT, "--trainer.devices=2", "--trainer.strategy=ddp"],
        code=2,
    )
    assert "no trial reached a value" in printed
    found = trials(tmp_path)
    assert [trial.state for trial in found] == [TrialState.PRUNED] * 2
    for trial in found:
        assert list(trial.intermediate_values) == [3]  # the end of the first epoch
        assert trial.value == trial.intermediate_values[3]
        assert [attempt["exit"] for attempt in trial.user_attrs["attempts"]] == ["exit code 6"]
        log = (tmp_path / "runs/sweeps/study-cls" / trial.user_attrs["folder"]).with_suffix(".log").read_text()
        assert log.count("pruned at step 3") == 1 and "Traceback" not in log
    assert running(tmp_path) == []


@pytest.mark.slow
def test_a_trial_that_diverges_fails_alone(tmp_path: Path):
    """S10, S11: the reason is stored, the sweep goes on, and it is never best."""
    space = {"model.optimizer.lr": {"categorical": [1e30, 0.002]}}
    printed = sweep(tmp_path, space=space, sampler="GridSampler", n_trials=None)
    by_rate = {trial.params["model.optimizer.lr"]: trial for trial in trials(tmp_path)}
    assert by_rate[1e30].state == TrialState.FAIL and by_rate[1e30].user_attrs["outcome"] in ("diverged", "no value")
    assert "loss" in by_rate[1e30].user_attrs["reason"] or "objective" in by_rate[1e30].user_attrs["reason"]
    assert len(by_rate[1e30].user_attrs["attempts"]) == 1  # S7: not tried again
    assert by_rate[0.002].state == TrialState.COMPLETE
    best = yaml.safe_load((tmp_path / "runs/sweeps/study-cls/best.yaml").read_text())
    assert best["model"]["optimizer"]["lr"] == 0.002
    assert re.search(r"best: nala fit --task cls --config .*best\.yaml", printed)


@pytest.mark.campaign
def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path: Path):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**STUDY, "overrides": [*SHORT, "--trainer.max_epochs=40"]}))
    words = [NALA, "sweep", "study.yaml", "--workers", "2"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    folder = tmp_path / "runs/sweeps/study-cls"
    while len(list(folder.glob("trials/*/checkpoints/last.ckpt"))) < 2:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    printed = process.communicate(timeout=120)[0]
    assert process.returncode == 130, printed
    assert f"go on with: nala sweep --resume {folder}" in printed and "Traceback" not in printed
    assert running(tmp_path) == []
    assert [trial.state for trial in trials(tmp_path)] == [TrialState.WAITING] * 2
    before = [trial.params for trial in trials(tmp_path)]
    sweep(tmp_path, "--resume", str(folder))
    assert [trial.state for trial in trials(tmp_path)] == [TrialState.COMPLETE] * 2
    assert [trial.params for trial in trials(tmp_path)] == before
    assert all("resuming" in path.read_text() for path in folder.glob("trials/*.log"))


@pytest.mark.campaign
def test_a_time_limit_ends_a_trial(tmp_path: Path):
    sweep(
        tmp_path,
        *("study.yaml", "--trial-timeout", "12", "--n-trials", "1"),
        overrides=[*SHORT, "--trainer.max_epochs=100000"],
        code=2,
    )
    (trial,) = trials(tmp_path)
    assert trial.state == TrialState.FAIL and trial.user_attrs["outcome"] == "time limit"
    assert running(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.yaml"], "no study 'nothing.yaml'"),
        ([], "nala sweep needs a study"),
        (["smoke", "--workers", "0"], "'0' is no whole number from 1 up"),
        (["smoke", "--worker", "2"], "no option --worker; did you mean '--workers'"),
        (["--resume", "."], "is not the folder of a sweep"),
        (["status", "."], "is not the folder of a sweep"),
        (["smoke", "--executor", "slurm"], "--executor='slurm' is unknown"),
        (["--resume", "x", "--", "--trainer.max_epochs", "3"], "goes on with the plan that it began with"),
        (["--resume", "x", "--seed", "3"], "goes on with the plan that it began with: leave --seed away"),
        (["smoke", "--stop-timeout", "0"], "stop_timeout_s must be above 0"),
        (["smoke", "--", "--folder", "x"], "--folder cannot go to the trials of a sweep"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(words: list[str], said: str, zygote, tmp_path: Path):
    done = zygote.call(tmp_path, "sweep", *words, code=2)
    assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert list(tmp_path.iterdir()) == []
