"""Trials as work to be shared out: each claimed once, gone on with when its owner dies, n is n."""

import fcntl
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from nala_platform.sweeps import command, waiting
from nala_platform.sweeps.attempt import Ending
from nala_platform.sweeps.folder import begin, open_sweep
from nala_platform.sweeps.objective import Objective
from nala_platform.sweeps.outcome import OUTCOMES, judge, values
from nala_platform.sweeps.owner import me
from nala_platform.sweeps.plan import Plan
from nala_platform.sweeps.storage import exclusive, quiet
from optuna.trial import TrialState

from nala_platform.errors import ExitCode, StorageError, UserError

quiet()
SETTINGS = {
    "task": "cls",
    "n_trials": 30,
    "space": {"model.optimizer.lr": {"float": {"low": 1e-4, "high": 1e-1, "log": True}}},
    "sampler": "RandomSampler",
    "pruner": {"class_path": "MedianPruner", "init_args": {"n_startup_trials": 2, "n_warmup_steps": 0}},
}


@pytest.fixture(params=["journal", "postgres"])
def where(request, tmp_path: Path):
    """A sweep's folder and its storage's URL, of both kinds."""
    if request.param == "journal":
        yield tmp_path, None
    else:
        yield tmp_path, request.getfixturevalue("postgres")


def sweep(where, **changes):
    return begin(where[0], "s", where[1], Plan.from_dict({**SETTINGS, **changes}))


CLAIMER = """
import sys, time
from pathlib import Path
from nala_platform.sweeps.folder import open_sweep
from nala_platform.sweeps.storage import exclusive, quiet
quiet()
trials = open_sweep(Path(sys.argv[1])).trials()
while claim := trials.claim():
    print(claim.number, claim.values["model.optimizer.lr"], flush=True)
    if sys.argv[2] == "hold":
        trials.report(claim, 1, 0.25)
        print("held", flush=True)
        time.sleep(600)
    trials.finish(claim, "finished", "exit code 0", [0.5])
"""


def claimer(folder: Path, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CLAIMER, str(folder), how], stdout=subprocess.PIPE, text=True)


def test_workers_at_once_do_each_trial_once_and_none_alike(where):
    """S4, S8."""
    made = sweep(where)
    made.trials().provide(30)
    workers = [claimer(where[0], "go") for _ in range(6)]
    lines = [line.split() for worker in workers for line in worker.communicate(timeout=120)[0].splitlines()]
    assert [worker.returncode for worker in workers] == [0] * 6
    assert sorted(int(number) for number, _ in lines) == list(range(30))
    assert len({rate for _, rate in lines}) == 30  # no two workers draw from one seed
    trials = made.trials()
    assert trials.is_full() and trials.claim() is None and len(trials.all()) == 30
    trials.provide(30)
    assert len(trials.all()) == 30  # a full study is a no-op
    more = sweep(where, n_trials=32).trials()
    more.provide(32)
    assert len(more.all()) == 32 and not more.is_full() and trials.is_full()
    fewer = sweep(where, n_trials=31).trials()
    claim = fewer.claim()
    fewer.finish(claim, "finished", "exit code 0", [0.5])
    assert claim.number == 30 and fewer.is_full() and fewer.claim() is None  # the last, of the larger plan, waits on
    assert fewer.all()[31].state == TrialState.WAITING


def test_a_trial_of_a_dead_owner_goes_on_with_its_parameters_and_reports(where):
    """S5, S6."""
    made = sweep(where, n_trials=1)
    made.trials().provide(1)
    worker = claimer(where[0], "hold")
    number, rate = worker.stdout.readline().split()
    assert worker.stdout.readline() == "held\n"
    trials = made.trials()
    assert trials.claim() is None  # it lives
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    claim = trials.claim()
    assert (claim.number, claim.values["model.optimizer.lr"]) == (int(number), float(rate))
    assert claim.retries == 0 and claim.seconds >= 0
    trials.report(claim, 2, 0.75)
    trials.finish(claim, "finished", "exit code 0", [0.75], note="x")
    (frozen,) = trials.all()
    assert frozen.state == TrialState.COMPLETE and frozen.intermediate_values == {1: 0.25, 2: 0.75}
    first, second = frozen.user_attrs["attempts"]
    assert first["exit"] == "owner died" and first["pid"] == worker.pid and first["end"] is not None
    assert second["exit"] == "exit code 0" and second["pid"] == os.getpid() and frozen.user_attrs["note"] == "x"


def test_an_owner_that_dies_between_two_words_loses_and_doubles_nothing(where):
    trials = sweep(where, n_trials=1).trials()
    trials.provide(1)
    dead = {**me(), "pid": 2**22 + 1}
    identity = trials.all()[0]._trial_id

    def die() -> None:  # after what this process has said for it
        trials.storage.set_trial_user_attr(identity, "owner", dead)

    trials.storage.set_trial_state_values(identity, TrialState.RUNNING)  # RUNNING, and nobody's
    first = trials.claim()
    trials.storage.set_trial_user_attr(identity, "attempts", [{**dead, "start": 100.0, "end": 103.0, "exit": "x"}])
    trials.storage.set_trial_user_attr(identity, "heartbeat", 9000.0)
    die()  # a new owner, whose attempt was not noted yet: it spoils no other's
    assert not trials.is_ours(first)
    second = trials.claim()
    assert (second.number, second.seconds) == (0, 3.0) and trials.is_ours(second)
    assert [attempt["exit"] for attempt in trials.all()[0].user_attrs["attempts"][:-1]] == ["x"]
    trials._note_attempt(trials.storage.get_trial(identity), {"end": time.time(), "exit": "exit code 0"})
    die()  # its end is noted, the state is not told
    assert [trial.number for trial in trials.release()] == [0] and trials.release() == []
    assert trials.all()[0].user_attrs["attempts"][-1]["exit"] == "exit code 0"
    trials.finish(trials.claim(), "finished", "exit code 0", [0.5])
    assert trials.is_full() and trials.claim() is None and len(trials.all()) == 1


def test_what_is_given_back_is_next_and_its_retries_are_counted(where):
    """S7."""
    trials = sweep(where, n_trials=2).trials()
    trials.provide(2)
    for retries, is_retry in enumerate((True, True, False)):
        claim = trials.claim()
        assert (claim.number, claim.retries) == (0, retries)
        trials.give_back(claim, "SIGKILL", is_retry=is_retry)
    assert trials.claim().retries == 2


def test_hopeless_trials_are_told_to_stop(where):
    """S3: the median of what the others reported at that step."""
    trials = sweep(where).trials()
    trials.provide(4)
    for value in (0.8, 0.9, 0.95):
        claim = trials.claim()
        assert not trials.report(claim, 5, value)
        trials.finish(claim, "finished", "exit code 0", [value])
    claim = trials.claim()
    assert not trials.report(claim, 4, math.nan)  # S10: it is for its end to be judged
    assert trials.report(claim, 5, 0.1)
    trials.finish(claim, "pruned", "exit code 6", None)
    frozen = trials.all()[3]
    assert frozen.state == TrialState.PRUNED and frozen.value == 0.1
    assert trials.study.best_value == 0.95


def test_another_plan_is_refused_with_what_differs(where):
    """S9."""
    made = sweep(where)
    assert open_sweep(where[0]).plan == made.plan
    sweep(where, n_trials=40, max_retries=1)  # these may change
    with pytest.raises(UserError, match=r"space\.model\.optimizer\.lr: .*0\.1.* in the sweep, .*0\.2.* was asked for"):
        sweep(where, space={"model.optimizer.lr": {"float": {"low": 1e-4, "high": 0.2, "log": True}}})
    with pytest.raises(UserError, match="task: cls in the sweep, seg was asked for"):
        sweep(where, task="seg", objectives=["val/miou"])
    assert open_sweep(where[0]).plan.n_trials == 40


@pytest.mark.parametrize(
    ("ending", "name", "is_retry"),
    [
        (Ending(0), "finished", False),
        (Ending(6, was_pruned=True), "pruned", False),
        (Ending(0, was_pruned=True), "pruned", False),
        (Ending(143, was_out_of_time=True), "time limit", False),
        (Ending(143, was_stopped=True), "interrupted", False),
        (Ending(143), "killed", True),
        (Ending(-signal.SIGKILL), "killed", True),
        (Ending(137), "killed", True),
        (Ending(1), "crash", False),
        (Ending(2), "user error", False),
        (Ending(3), "diverged", False),
        (Ending(4), "storage", True),
        (Ending(5), "out of memory", False),
        (Ending(0), "finished", False),
        (Ending(6), "pruned", False),
        (Ending(ExitCode.INCOMPLETE), "incomplete", False),
        (Ending(8), "unknown exit code", False),
        (Ending(77), "unknown exit code", False),
        (Ending(255), "unknown exit code", False),
        (Ending(130), "killed", True),
        (Ending(-40), "killed", True),
    ],
)
def test_ends_are_told_apart(ending: Ending, name: str, is_retry: bool, tmp_path: Path):
    """S7, S10, S11."""
    (tmp_path / "log").write_text("epoch 1\nnala: error: the reason\nsomething later\n")
    outcome = judge(ending, tmp_path / "log")
    assert (outcome.name, outcome.is_retry) == (name, is_retry)
    if name in ("crash", "user error", "diverged", "storage", "out of memory"):
        assert outcome.reason == "the reason"
    if name == "unknown exit code":
        assert outcome.reason == f"exit code {ending.code} is none of nala's: the reason"


def test_every_exit_code_has_an_outcome():
    """A code that is added to the enum without a row here would be taken for an unknown one."""
    assert set(OUTCOMES) == set(ExitCode)
    assert [int(code) for code, (_, is_retry) in OUTCOMES.items() if is_retry] == [4]


def test_values_of_the_objectives():
    best, last = Objective("val/x", "maximize", "best"), Objective("val/x", "minimize", "last")
    least = Objective("val/x", "minimize", "best")
    reports, known = {2: 0.5, 4: math.nan, 6: 0.25}, {"parameters": 7, "metrics": {"val/y": 0.125}}
    assert values((best,), reports, known) == [0.5]
    assert values((least,), reports, known) == [0.25]
    assert values((last, Objective("parameters", "minimize", "best")), reports, known) == [0.25, 7.0]
    assert values((best, Objective("val/y", "maximize", "best")), reports, known) == [0.5, 0.125]
    assert values((best,), {1: math.nan}, known) == "the objective val/x is nan"  # S10
    assert values((best,), {}, known) == "the objective val/x is None"
    assert values((last,), {1: 0.5, 2: math.inf}, known) == "the objective val/x is inf"
    assert values((best, Objective("gmacs", "minimize", "best")), reports, known) == "the objective gmacs is None"


def test_runs_of_a_study_that_is_gone_are_not_taken_for_this_one(tmp_path: Path):
    made = sweep((tmp_path, None))
    (tmp_path / "trials").mkdir()
    sweep((tmp_path, None))
    (tmp_path / "journal.log").unlink()
    with pytest.raises(UserError, match=r"study s .* is gone from its storage, the file .*journal\.log"):
        made.trials()
    with pytest.raises(UserError, match="trials holds runs of an earlier sweep s, whose study is gone: move"):
        sweep((tmp_path, None))


def test_signs_of_life_are_stored(where):
    trials = sweep(where).trials()
    trials.provide(1)
    claim = trials.claim()
    before = trials.all()[0].user_attrs["heartbeat"]
    time.sleep(0.01)
    trials.beat(claim)
    assert trials.all()[0].user_attrs["heartbeat"] > before


def test_a_new_study_knows_the_trials_of_an_old_one(where, tmp_path: Path):
    """S9: those that lie in its space; they do not count for its number of trials."""
    old = sweep(where).trials()
    old.provide(3)
    rates = []
    for _ in range(3):
        claim = old.claim()
        rates.append(claim.values["model.optimizer.lr"])
        old.finish(claim, "finished", "exit code 0", [rates[-1]])
    edge = sorted(rates)[1]
    space = {"model.optimizer.lr": {"float": {"low": 1e-5, "high": edge, "log": True}}}
    new = begin(tmp_path / "new", "new", where[1], Plan.from_dict({**SETTINGS, "space": space, "n_trials": 2})).trials()
    assert new.take_over(old) == 2 and new.take_over(old) == 0
    assert sorted(trial.value for trial in new.all()) == sorted(rates)[:2]
    new.provide(2)
    assert len(new.all()) == 4 and len(new.own()) == 2 and new.claim().number == 2


def test_workers_that_can_never_work_end_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Broken:
        def start(self) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(["false"])
            process.wait()
            return process

    monkeypatch.setattr(command, "_PATIENCE", 0.0)
    monkeypatch.setattr(command, "_LOOK", 0.0)
    with pytest.raises(UserError, match="10 workers in a row ended by an error"):
        conductor = command.Conductor(sweep((tmp_path, None), n_trials=3), 2, Broken())
        conductor.trials.provide(3)
        while True:
            conductor._man(conductor.trials.own())


def test_a_sweep_is_looked_at_while_another_process_holds_its_locks(
    where, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """`nala sweep status` and `doctor` wait for nobody; `doctor --repair` says for whom it waits, and not for ever."""
    made = sweep(where, n_trials=2)
    made.trials().provide(1)
    trials = made.trials()
    monkeypatch.setattr(waiting, "LIMIT", 0.5)
    monkeypatch.setattr(waiting, "NOTICE", 0.1)
    with exclusive(trials.storage, made.folder, made.name), (made.folder / "journal.log").open("ab") as journal:
        if where[1] is None:
            fcntl.flock(journal, fcntl.LOCK_EX)
            journal.write(b'{"half a l')
            journal.flush()
        command.main(["status", str(made.folder)])
        assert "0 of 2 trials finished, 1 waiting" in capsys.readouterr().out
        command.main(["doctor", str(made.folder)])
        said = capsys.readouterr().out
        assert "1 of 2 trials were never made" in said
        if where[1] is None:
            assert f"ends in half a line, and process {os.getpid()} holds its lock: look again" in said
        with pytest.raises(StorageError, match="has been locked by "):
            command.main(["doctor", str(made.folder), "--repair"])
        assert "nala: waiting for " in capsys.readouterr().err
    command.main(["doctor", str(made.folder), "--repair"])
    assert len(made.trials().all()) == 2


def reach(step: int, warmup: int, height: float) -> float:
    """A closed form of a score: the integral of a learning rate that warms up linearly, saturating at ``height``."""
    area = step**2 / (2 * warmup) if step < warmup else step - warmup / 2
    return height * (1.0 - math.exp(-area / 10))


def simulated(folder: Path, is_told: bool) -> list[optuna.trial.FrozenTrial]:
    """A study in which a long warm-up ends highest and begins lowest, each trial 100 steps, judged every fifth."""
    space = {"model.schedule.warmup": {"float": {"low": 0.0, "high": 0.4}}}
    plan = Plan.from_dict({"task": "cls", "n_trials": 30, "space": space, "sampler": "RandomSampler"})
    trials = begin(folder, "s", None, plan).trials()
    trials.provide(plan.n_trials)
    while claim := trials.claim():
        share = claim.values["model.schedule.warmup"]
        warmup, is_pruned = max(1, round(100 * share)), False
        for step in range(5, 101, 5):
            said = {"total_steps": 100, "steps_per_epoch": 5, "warmup_steps": warmup}
            score = reach(step, warmup, 0.7 + 0.5 * share)
            is_pruned = trials.report(claim, step, score, plan.warmup.end(said) if is_told else 0.0)
            if is_pruned:
                break
        trials.finish(claim, "pruned" if is_pruned else "finished", "", None if is_pruned else [score])
    return trials.all()


def test_a_long_warm_up_can_win(tmp_path: Path):
    """The default pruner judges nobody before the longest warm-up of the space has ended; after it, it prunes."""
    # the pruner lets the first five pass whatever they report, so what is shown is shown by the others
    found = [trial for trial in simulated(tmp_path / "told", is_told=True) if trial.number >= 5]
    shares = [trial.params["model.schedule.warmup"] for trial in found]
    best = max((trial for trial in found if trial.state == TrialState.COMPLETE), key=lambda trial: trial.value)
    assert best.params["model.schedule.warmup"] == max(shares) > 0.3
    pruned = [trial for trial in found if trial.state == TrialState.PRUNED]
    assert len(pruned) > 5 and all(max(trial.intermediate_values) > 40 for trial in pruned)
    assert all(trial.params["model.schedule.warmup"] < 0.3 for trial in pruned)
    # without it, all those that would have ended highest are pruned
    untold = [trial for trial in simulated(tmp_path / "untold", is_told=False) if trial.number >= 5]
    long = [trial for trial in untold if trial.params["model.schedule.warmup"] > 0.3]
    assert len(long) > 3 and {trial.state for trial in long} == {TrialState.PRUNED}


@pytest.mark.parametrize("name", ["MedianPruner", "SuccessiveHalvingPruner", "HyperbandPruner", "PercentilePruner"])
def test_no_pruner_of_the_user_s_judges_inside_the_warm_up(name: str, tmp_path: Path):
    options = {"PercentilePruner": {"percentile": 10.0, "n_startup_trials": 0}, "MedianPruner": {"n_startup_trials": 0}}
    pruner = {"class_path": name, "init_args": options.get(name, {"min_resource": 1})}
    trials = sweep((tmp_path, None), pruner=pruner, n_trials=12).trials()
    trials.provide(12)
    pruned = []
    while claim := trials.claim():
        for step in (1, 2, 4, 8):
            if trials.report(claim, step, 1.0 / (1 + claim.number), warmup_end=4):
                pruned.append(step)
                break
        trials.finish(claim, "pruned" if pruned else "finished", "", [0.5])
    assert set(pruned) == {8}


def test_where_the_end_of_the_warm_up_is_not_known_nothing_is_pruned(where):
    trials = sweep(where, pruner={"class_path": "ThresholdPruner", "init_args": {"lower": 1.0}}).trials()
    trials.provide(1)
    claim = trials.claim()
    assert not trials.report(claim, 10**9, 0.5, warmup_end=None) and trials.report(claim, 10**9 + 1, 0.5)
