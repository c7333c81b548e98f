"""What the end of a `nala fit` process means for its trial."""

import json
import math
import signal
from pathlib import Path
from typing import Any, NamedTuple

from nala_platform import runs
from nala_platform.errors import FIRST_SIGNAL, ExitCode

from .attempt import Ending
from .plan import Objective

FINISHED, PRUNED, INTERRUPTED, KILLED = "finished", "pruned", "interrupted", "killed"
# The outcome of each exit code, and whether another attempt may end better: what the trial's own parameters brought
# about would only happen again. A signal is in no trial's parameters: `judge` retries it. Any other code fails.
OUTCOMES = {
    ExitCode.SUCCESS: (FINISHED, False),
    ExitCode.FAILURE: ("crash", False),
    ExitCode.USER_ERROR: ("user error", False),
    ExitCode.DIVERGED: ("diverged", False),
    ExitCode.STORAGE: ("storage", True),
    ExitCode.OUT_OF_MEMORY: ("out of memory", False),
    ExitCode.PRUNED: (PRUNED, False),
    ExitCode.INCOMPLETE: ("incomplete", False),  # no fit ends so
}
_FACTS = ("parameters", "seconds_per_step", "peak_memory_bytes", "gmacs", "wall_time_s")


class Outcome(NamedTuple):
    """A word or two, how the process ended, why, and whether the trial may be tried again."""

    name: str
    exit: str
    reason: str = ""
    is_retry: bool = False


def judge(ending: Ending, log: Path) -> Outcome:
    """The outcome of an attempt, the values of a finished one not yet looked at."""
    code = ending.code
    ended_by = _signal(code)
    exit = f"exit code {code}" if code >= 0 else str(ended_by)
    if ending.was_pruned:
        return Outcome(PRUNED, exit)
    if ending.was_out_of_time:
        return Outcome("time limit", exit, "the trial took longer than its time limit")
    if ending.was_stopped:
        return Outcome(INTERRUPTED, exit)
    if code in OUTCOMES:
        name, is_retry = OUTCOMES[ExitCode(code)]
        return Outcome(name, exit, "" if name in (FINISHED, PRUNED) else _last_word(log), is_retry)
    if ended_by is not None:
        return Outcome(KILLED, exit, f"the process was ended by {ended_by}", is_retry=True)
    return Outcome("unknown exit code", exit, f"{exit} is none of nala's: {_last_word(log)}")


def facts(folder: Path) -> dict[str, Any]:
    """What a finished run's summary tells: its metrics, size and cost; empty if there is none."""
    path = folder / runs.SUMMARY
    if not path.is_file():
        return {}
    summary = json.loads(path.read_text(encoding="utf-8"))
    return {"metrics": summary["metrics"], **{key: summary[key] for key in _FACTS if summary.get(key) is not None}}


def values(objectives: tuple[Objective, ...], reports: dict[int, float], known: dict[str, Any]) -> list[float] | str:
    """The objectives' values of a finished trial, or why there are none.

    Args:
        objectives: the first is what was reported, if it is a validation metric.
        reports: by step.
        known: what `facts` found.
    """
    found = []
    for place, objective in enumerate(objectives):
        metric = objective.metric
        if place == 0 and metric.startswith("val/"):
            value = _chosen(objective, reports)
        else:
            value = known.get(metric, known.get("metrics", {}).get(metric))
        if value is None or not math.isfinite(value):
            return f"the objective {metric} is {value}"
        found.append(float(value))
    return found


def _chosen(objective: Objective, reports: dict[int, float]) -> float | None:
    if not reports or objective.value == "last":
        return reports[max(reports)] if reports else None
    finite = [value for value in reports.values() if math.isfinite(value)]
    if not finite:
        return math.nan
    return max(finite) if objective.direction == "maximize" else min(finite)


def _signal(code: int) -> str | None:
    """The name of the signal that ended a process, itself or, as a shell or launcher passes it on, 128 + its number."""
    number = -code if code < 0 else code - FIRST_SIGNAL
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if code < 0 else None  # real-time signals have no names


def _last_word(log: Path) -> str:
    """The last line that the process printed: of ours, or a traceback's."""
    printed = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = [line for line in printed.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("nala: error: ")]
    return (ours or lines or ["it printed nothing"])[-1].removeprefix("nala: error: ")[:500]
