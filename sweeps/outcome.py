"""What the end of a `nala fit` process means for its trial."""

import json
import math
import signal
from pathlib import Path
from typing import Any, NamedTuple

from nala_platform import runs

from .attempt import Ending
from .plan import Objective

FINISHED, PRUNED, INTERRUPTED = "finished", "pruned", "interrupted"
# Exit codes of `nala`, and whether another attempt may end better: what the trial's own parameters brought about would
# only happen again.
_CODES = {
    1: ("crash", False),
    2: ("user error", False),
    3: ("diverged", False),
    4: ("storage", True),
    5: ("out of memory", False),
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
    exit = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    if ending.was_pruned:
        return Outcome(PRUNED, exit)
    if ending.was_out_of_time:
        return Outcome("time limit", exit, "the trial took longer than its time limit")
    if ending.was_stopped:
        return Outcome(INTERRUPTED, exit)
    if code == 0:
        return Outcome(FINISHED, exit)
    if code in _CODES:
        name, is_retry = _CODES[code]
        return Outcome(name, exit, _last_word(log), is_retry)
    number = -code if code < 0 else code - 128
    return Outcome("killed", exit, f"the process was ended by {_name(number)}", is_retry=True)


def facts(folder: Path) -> dict[str, Any]:
    """What a finished run's summary tells: its metrics, size and cost; empty if there is none."""
    path = folder / runs.SUMMARY
    if not path.is_file():
        return {}
    summary = json.loads(path.read_text())
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


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"exit code {128 + number}"


def _last_word(log: Path) -> str:
    """The last line that the process printed: of ours, or a traceback's."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.is_file() else []
    ours = [line for line in lines if line.startswith("nala: error: ")]
    return (ours or lines or ["it printed nothing"])[-1].removeprefix("nala: error: ")[:500]
