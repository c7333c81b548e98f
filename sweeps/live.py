"""What the terminal shows while a sweep goes on."""

import sys
import time
from collections.abc import Sequence
from types import TracebackType

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.live import Live
from rich.table import Table

from .objective import Objective
from .results import best, duration, last_value, number, word

_AROUND = 8  # lines of a terminal that rows do not get
_STYLES = {"finished": "green", "pruned": "dim", "running": "bold", "waiting": "dim", "interrupted": "yellow"}


class LiveTable:
    """A table that changes where the output is a terminal, one line a finished trial where it is a file or a pipe.

    Use it as a context, inside which `update` is called now and then.

    Args:
        objectives: of the sweep; the first is shown.
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self.objective = objectives[0]
        self._told: set[int] | None = None  # numbers of the trials that have their line
        self._live: Live | None = None
        if sys.stdout.isatty():
            self._live = Live(console=Console(), auto_refresh=False)

    def __enter__(self) -> "LiveTable":
        """Take the terminal."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the last table standing."""
        if self._live is not None:
            self._live.stop()

    def update(self, trials: list[FrozenTrial], n_trials: int) -> None:
        """Show how it stands.

        Args:
            trials: all that there are.
            n_trials: that there are to be.
        """
        summary = progress(trials, n_trials, self.objective, time.time())
        if self._live is not None:
            room = max(3, self._live.console.size.height - _AROUND)
            self._live.update(live_table(trials, self.objective, summary, room, time.time()), refresh=True)
            return
        done = [trial for trial in trials if trial.state.is_finished()]
        if self._told is None:
            self._told = {trial.number for trial in done}
            if done:
                print(f"already done: {summary}", flush=True)
            return
        for trial in done:
            if trial.number not in self._told:
                self._told.add(trial.number)
                print(f"{line(trial, self.objective)} ({summary})", flush=True)


def line(trial: FrozenTrial, objective: Objective) -> str:
    """A trial that is done, in a line: how it ended, its value, its time, or why it has none."""
    parts = [f"trial {trial.number}: {word(trial)}"]
    value = last_value(trial)
    if trial.state != TrialState.FAIL and value is not None:
        parts.append(f"{objective.metric} {number(value)}")
    elif reason := trial.user_attrs.get("reason"):
        parts.append(reason)
    return ", ".join([*parts, duration(elapsed(trial, time.time()))])


def progress(trials: list[FrozenTrial], n_trials: int, objective: Objective, now: float) -> str:
    """``12 of 40 done, 3 running, best val/top1 0.9722 by trial 7, about 14 min 3 s left``."""
    done = sum(trial.state.is_finished() for trial in trials)
    running = sum(trial.state == TrialState.RUNNING for trial in trials)
    parts = [f"{done} of {n_trials} done"]
    if running:
        parts.append(f"{running} running")
    if (leader := best(trials, objective)) is not None:
        parts.append(f"best {objective.metric} {number(leader.values[0])} by trial {leader.number}")
    if (left := seconds_left(trials, n_trials, now)) is not None:
        parts.append(f"about {duration(left)} left")
    return ", ".join(parts)


def seconds_left(trials: list[FrozenTrial], n_trials: int, now: float) -> float | None:
    """Until all are done, if the others take as long, and so many run at once, as until now; None: nobody can tell."""
    done = [trial for trial in trials if trial.state.is_finished()]
    running = [trial for trial in trials if trial.state == TrialState.RUNNING]
    if not done or not running:
        return None
    each = sum(elapsed(trial, now) for trial in done) / len(done)
    begun = sum(max(0.0, each - elapsed(trial, now)) for trial in running)
    return (begun + each * max(0, n_trials - len(done) - len(running))) / len(running)


def elapsed(trial: FrozenTrial, now: float) -> float:
    """Seconds that a trial has taken over all its attempts."""
    if (known := trial.user_attrs.get("seconds")) is not None:
        return known
    attempts = trial.user_attrs.get("attempts", [])
    ends = [attempt.get("end") or attempt["start"] for attempt in attempts]
    if attempts and trial.state == TrialState.RUNNING:
        ends[-1] = now
    return sum(end - attempt["start"] for end, attempt in zip(ends, attempts, strict=True))


def live_table(trials: list[FrozenTrial], objective: Objective, summary: str, room: int, now: float) -> Table:
    """At most ``room`` trials: those that run, the best, and the latest of the others that have begun."""
    begun = [trial for trial in trials if trial.state != TrialState.WAITING or trial.user_attrs.get("attempts")]
    found = best(trials, objective)
    leader = found.number if found is not None else None  # by number: Optuna compares trials by all that they hold
    urgent, others = [], []
    for trial in begun:
        (urgent if trial.state == TrialState.RUNNING or trial.number == leader else others).append(trial)
    shown = sorted([*urgent[:room], *others[max(0, len(others) - max(0, room - len(urgent))) :]])
    hidden = len(begun) - len(shown)
    table = Table(title=summary, title_justify="left", caption=f"{hidden} more trials" if hidden else None)
    for name in ("trial", "state", objective.metric, "step", "time", "attempts"):
        table.add_column(name, justify="left" if name == "state" else "right")
    for trial in shown:
        step = str(max(trial.intermediate_values)) if trial.intermediate_values else ""
        star = " *" if trial.number == leader else ""
        cells = [word(trial), number(last_value(trial)) + star, step, duration(elapsed(trial, now))]
        attempts = str(len(trial.user_attrs.get("attempts", [])))
        table.add_row(str(trial.number), *cells, attempts, style=_STYLES.get(word(trial), "red"))
    return table
