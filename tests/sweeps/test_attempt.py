"""A trial's process and its worker: what they say to each other, however the process ends."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from nala_platform.sweeps import attempt
from nala_platform.sweeps.attempt import Attempt
from nala_platform.sweeps.folder import begin
from nala_platform.sweeps.worker import Worker
from optuna.trial import TrialState
from plans import plan

RUN = """#!{python}
import os, signal, sys, time
answers, reports, metric = os.environ["NALA_SWEEP_REPORT"].split(",")
answers, reports = int(answers), int(reports)
def ask(step):
    os.write(reports, b'{{"step": %d, ' % step)
    time.sleep(0.05)
    os.write(reports, b'"value": 0.5}}\\n')
    return os.read(answers, 64)
"""


def follow(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, report=lambda said: False, **how):
    """The ending of a run that does ``code``, and what it reported."""
    run = folder / "run"
    run.write_text(RUN.format(python=sys.executable) + code)
    run.chmod(0o755)
    said: list[dict] = []

    def note(one: dict) -> bool:
        said.append(one)
        return report(one)

    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(run))
        started = Attempt(["fit"], folder / "log", "val/x", {})
    return started.follow(**{"report": note, "tick": lambda: False, "seconds": None, **how}), said


def test_reports_in_pieces_are_answered_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = """
assert ask(1) == b"go on\\n" and ask(2) == b"stop\\n"
sys.exit(6)
"""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        ending, said = follow(tmp_path, monkeypatch, code, report=lambda one: one["step"] == 2)
        assert (ending.code, ending.was_pruned) == (6, True), (tmp_path / "log").read_text()
        assert [one["step"] for one in said] == [1, 2] and said[0]["value"] == 0.5
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_run_that_dies_while_it_waits_for_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its worker's answer goes nowhere, and the worker lives on to tell how the run ended."""
    ending, said = follow(*(tmp_path, monkeypatch, "signal.alarm(1); ask(7)"), report=lambda one: bool(time.sleep(1.5)))
    assert ending == (-signal.SIGALRM, False, False, False) and [one["step"] for one in said] == [7]


def test_what_a_run_said_last_is_heard_though_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = """os.write(reports, b'{{"step": 9, "value": NaN}}\\n{{"half')""".replace("{{", "{").replace("}}", "}")
    ending, said = follow(tmp_path, monkeypatch, code)
    assert ending.code == 0 and [one["step"] for one in said] == [9]


def test_a_run_that_hears_nothing_is_killed_with_all_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if (child := os.fork()) == 0:
    time.sleep(600)
open("child", "w").write(str(child))
time.sleep(600)
"""
    monkeypatch.setattr(attempt, "GRACE", 0.5)
    monkeypatch.chdir(tmp_path)
    ending, _ = follow(tmp_path, monkeypatch, code, seconds=1.5)
    assert (ending.code, ending.was_out_of_time) == (-signal.SIGKILL, True)
    child = Path(f"/proc/{(tmp_path / 'child').read_text()}/stat")
    time.sleep(0.3)
    assert not child.exists() or child.read_text().rpartition(")")[2].split()[0] in "ZX"


def attend(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, **how):
    """The attempt of a run that does ``code``, and its ending; a second is granted to it."""
    run = folder / "run"
    run.write_text(RUN.format(python=sys.executable) + code)
    run.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(run))
        patch.chdir(folder)
        started = Attempt(["fit"], folder / "log", "val/x", {})
    defaults = {"report": lambda said: False, "tick": lambda: False, "seconds": None, "grace": 1.0}
    return started, started.follow(**{**defaults, **how})


def is_gone(pid: int) -> bool:
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


HANG = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if (child := os.fork()) == 0:
    time.sleep(600)
open("child", "w").write(str(child))
time.sleep(600)
"""


def test_a_pruned_run_that_hangs_in_its_teardown_is_killed_with_its_whole_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is pruned all the same, and shows signs of life until then."""
    ticks: list[float] = []
    attempt, ending = attend(
        *(tmp_path, monkeypatch, f"assert ask(1) == b'stop\\n'{HANG}"),
        report=lambda said: True,
        tick=lambda: bool(ticks.append(0.0)),
    )
    assert ending == (-signal.SIGKILL, True, False, False) and attempt.was_stuck and not attempt.is_done
    assert ticks and is_gone(int((tmp_path / "child").read_text()))


def test_a_run_that_hangs_after_its_work_is_killed_and_known_to_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code = """os.write(reports, b'{"done": true}' + bytes([10]))"""
    attempt, ending = attend(tmp_path, monkeypatch, code + HANG)
    assert ending == (-signal.SIGKILL, False, False, False) and attempt.was_stuck and attempt.is_done
    attempt, ending = attend(tmp_path, monkeypatch, code)
    assert ending == (0, False, False, False) and not attempt.was_stuck and attempt.is_done


def test_a_stopped_run_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    attempt, ending = attend(tmp_path, monkeypatch, HANG, tick=lambda: (tmp_path / "child").exists())
    assert ending == (-signal.SIGKILL, False, False, True) and attempt.was_stuck


def test_a_process_that_not_even_a_kill_ends_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As one whose disk does not answer: the wait for it ends too."""
    monkeypatch.setattr(Attempt, "_signal", lambda self, number: None)
    attempt, ending = attend(tmp_path, monkeypatch, HANG, seconds=0.0, grace=0.2)
    assert ending == (-signal.SIGKILL, False, True, False) and attempt.was_stuck
    os.killpg(attempt.process.pid, signal.SIGKILL)


def test_a_worker_that_cannot_go_on_leaves_no_run_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(said: dict) -> bool:
        raise OSError("the storage is gone")

    with pytest.raises(OSError, match="the storage is gone"):
        attend(tmp_path, monkeypatch, f"open('child', 'w').write(str(os.getpid())); ask(1){HANG}", report=broken)
    assert is_gone(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize(
    ("code", "state", "told"),
    [
        ("ask(5)", TrialState.PRUNED, "it was told to end"),
        ("ask(1); os.write(reports, b'{\"done\": true}' + bytes([10]))", TrialState.COMPLETE, "its work was done"),
    ],
)
def test_a_sweep_goes_on_after_a_trial_that_hangs_at_its_end(
    code: str,
    state: TrialState,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """What the trial had come to before counts, and it is told that it was killed."""
    run = tmp_path / "run"
    run.write_text(RUN.format(python=sys.executable) + code + HANG)
    run.chmod(0o755)
    pruner = {"class_path": "ThresholdPruner", "init_args": {"lower": 1.0, "n_warmup_steps": 2}}
    made = begin(tmp_path / "sweep", "s", None, plan(n_trials=2, stop_timeout_s=0.5, pruner=pruner))
    made.trials().provide(2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(run))
    assert Worker(made).work() == 0
    reason = f"the process was still there 0.5 s after {told}, and was killed"
    for trial in made.trials().all():
        assert trial.state == state and trial.value == 0.5 and trial.user_attrs["reason"] == reason
        assert [attempt["exit"] for attempt in trial.user_attrs["attempts"]] == ["SIGKILL"]
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"nala: trial {number}: {reason}; the sweep goes on" for number in (0, 1)]
