"""What a terminal and a pipe are told while a sweep goes on, and what `nala sweep status` prints."""

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made import ALPHA, add, alpha_params, alpha_study, make_study, mechanisms_study
from nala_platform.sweeps.live import LiveTable, elapsed, line, live_table, progress, seconds_left
from nala_platform.sweeps.objective import Objective
from nala_platform.sweeps.owner import me
from nala_platform.sweeps.results import word
from nala_platform.sweeps.status import print_status
from optuna.trial import FrozenTrial, TrialState, create_trial
from rich.console import Console

TOP1 = Objective("val/top1", "maximize", "best")


def trial(number: int, state: TrialState, **facts: object) -> FrozenTrial:
    values = {TrialState.COMPLETE: [0.9 + number / 100], TrialState.PRUNED: [0.99]}.get(state)
    made = create_trial(state=state, values=values, user_attrs=facts, intermediate_values={10: 0.5, 20: 0.75})
    made.number = number
    return made


def running(number: int, start: float) -> FrozenTrial:
    attempts = [{"start": start - 100, "end": start - 90}, {"start": start}]
    return trial(number, TrialState.RUNNING, owner=me(), heartbeat=start, attempts=attempts)


def test_the_time_left_is_the_mean_of_those_done(tmp_path: Path):
    done = [trial(0, TrialState.COMPLETE, seconds=60.0), trial(1, TrialState.FAIL, seconds=20.0)]
    now = 1000.0
    # 40 s each; two run: one since 15 s (after 10 s before), one since 300 s and so due; 4 more wait: (15 + 160) / 2
    trials = [*done, running(2, now - 15), running(3, now - 300), trial(4, TrialState.WAITING)]
    assert elapsed(trials[2], now) == 25
    assert seconds_left(trials, 8, now) == pytest.approx(87.5)
    assert seconds_left(trials[2:], 8, now) is None and seconds_left(done, 8, now) is None
    told = progress(trials, 8, TOP1, now)
    assert told == "2 of 8 done, 2 running, best val/top1 0.9 by trial 0, about 1 min 28 s left"


def test_a_pipe_gets_a_line_for_each_trial_that_is_done(capsys: pytest.CaptureFixture[str]):
    trials = [trial(0, TrialState.COMPLETE, seconds=60.0, outcome="finished"), running(1, time.time())]
    with LiveTable([TOP1]) as table:
        table.update(trials, 4)
        table.update(trials, 4)
        trials[1] = trial(1, TrialState.PRUNED, seconds=5.0, outcome="pruned")
        trials.append(trial(2, TrialState.FAIL, seconds=2.5, outcome="diverged", reason="the loss is [nan]"))
        table.update(trials, 4)
        trials.append(trial(3, TrialState.COMPLETE, seconds=200.0, outcome="finished"))
        table.update(trials, 4)
        table.update(trials, 4)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("already done: 1 of 4 done, 1 running, best val/top1 0.9 by trial 0, about ")
    assert lines[1:] == [
        "trial 1: pruned, val/top1 0.99, 5.0 s (3 of 4 done, best val/top1 0.9 by trial 0)",
        "trial 2: diverged, the loss is [nan], 2.5 s (3 of 4 done, best val/top1 0.9 by trial 0)",
        "trial 3: finished, val/top1 0.93, 3 min 20 s (4 of 4 done, best val/top1 0.93 by trial 3)",
    ]


def test_less_is_better_where_the_objective_says_so():
    loss = Objective("val/loss", "minimize", "best")
    trials = [trial(0, TrialState.COMPLETE), trial(1, TrialState.COMPLETE)]
    assert "best val/loss 0.9 by trial 0" in progress(trials, 2, loss, 0.0)
    assert line(trials[0], loss) == "trial 0: finished, val/loss 0.9, 0.0 s"


def test_the_table_shows_those_that_run_the_best_and_the_latest():
    now = time.time()
    trials = [trial(number, TrialState.COMPLETE, seconds=60.0) for number in range(20)]
    trials += [running(20, now - 30), trial(21, TrialState.WAITING)]
    trials[19] = trial(19, TrialState.FAIL, seconds=1.0, outcome="out of memory")
    console = Console(width=100, record=True, file=Path(os.devnull).open("w"))
    console.print(live_table(trials, TOP1, "summary", room=5, now=now))
    lines = console.export_text().splitlines()
    shown = [row.split("│")[1:7] for row in lines if row.startswith("│")]
    assert [[cell.strip() for cell in row] for row in shown] == [
        ["16", "finished", "1.06", "20", "1 min 0 s", "0"],
        ["17", "finished", "1.07", "20", "1 min 0 s", "0"],
        ["18", "finished", "1.08 *", "20", "1 min 0 s", "0"],
        ["19", "out of memory", "0.75", "20", "1.0 s", "0"],
        ["20", "running", "0.75", "20", "40.0 s", "2"],
    ]
    assert lines[0].strip() == "summary" and "16 more trials" in lines[-1]


TERMINAL = """
import sys, time
sys.path.insert(0, {here!r})
from test_live import TOP1, running, trial
from nala_platform.sweeps.live import LiveTable
from optuna.trial import TrialState
with LiveTable([TOP1]) as table:
    table.update([running(0, time.time())], 2)
    table.update([trial(0, TrialState.COMPLETE, seconds=3.0), running(1, time.time())], 2)
print("after")
"""


def test_a_terminal_gets_a_table_that_stays():
    parent, child = pty.openpty()
    code = TERMINAL.format(here=str(Path(__file__).parent))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=child, stderr=child, env=environment)
    os.close(child)
    said = b""
    try:
        while part := os.read(parent, 65536):
            said += part
    except OSError:  # Linux tells the end of a terminal so
        pass
    finally:
        os.close(parent)
    assert process.wait() == 0, said.decode()
    text = said.decode()
    assert "1 of 2 done, 1 running" in text and "\x1b[" in text and "0.9 *" in text
    assert text.rstrip().endswith("after")


def test_a_trial_whose_process_is_dead_is_interrupted():
    dead = {**me(), "started": 1}
    assert word(trial(0, TrialState.RUNNING, owner=dead, heartbeat=time.time())) == "interrupted"
    assert word(running(0, time.time())) == "running"
    assert word(trial(0, TrialState.WAITING)) == "waiting"
    assert word(trial(0, TrialState.WAITING, attempts=[{"start": 1.0, "end": 2.0}])) == "to be resumed"


def test_the_status_has_a_row_for_each_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    study = make_study({**ALPHA, "n_trials": 4})
    params = alpha_params(1.0, 0.5, "tanh", 1e-3, 0.1)
    add(study, tmp_path, params, [0.5], curve=[(10, 0.4), (20, 0.5)], outcome="finished")
    add(study, tmp_path, params, None, TrialState.FAIL, outcome="crash", reason="OSError: [Errno 28] no space")
    add(study, tmp_path, params, None, TrialState.RUNNING)
    owner, start = {**me(), "started": 1}, time.time() - 500
    attempts = [{**owner, "start": start}]
    add(study, tmp_path, params, None, TrialState.RUNNING, owner=owner, heartbeat=start + 90, attempts=attempts)
    print_status(study, tmp_path)
    text = capsys.readouterr().out
    rows = [[cell.strip() for cell in row.split("│")[1:-1]] for row in text.splitlines() if row.startswith("│")]
    place = f"{me()['host']}:{me()['pid']}"
    assert rows[0] == ["0", "finished", "0.5", "20", "1 min 0 s", "1", "", "", ""]
    assert rows[1] == ["1", "crash", "", "", "1 min 1 s", "1", "", "", "OSError: [Errno 28] no space"]
    assert rows[2][:2] == ["2", "running"] and rows[2][6] == place and rows[2][7].endswith("s ago")
    assert rows[3] == ["3", "interrupted", "", "", "1 min 30 s", "1", place, "6 min 50 s ago", ""]
    assert "1 of 4 trials finished, 1 running, 1 interrupted, 1 failed (crash 1)" in text
    assert f"nala sweep --resume {tmp_path}" in text.replace("\n", "")


def test_the_status_of_any_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for study in (make_study(ALPHA), alpha_study(tmp_path / "a"), mechanisms_study(tmp_path / "m")):
        print_status(study, tmp_path)
        rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith("│")]
        assert len(rows) == len(study.trials)
