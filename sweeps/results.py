"""What the trials of a study have come to, as a report, a table or a picture needs it."""

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from nala_platform import runs

from .plan import Objective, Plan
from .trials import FINISHED, TAKEN_OVER, is_interrupted

SEED = "seed_everything"  # the path of the dimension that repeats a run rather than changing it


class Curve(NamedTuple):
    """One column of a run against its optimizer steps."""

    steps: list[float]
    values: list[float]


class Column(NamedTuple):
    """One setting over some trials, in their order.

    Attributes:
        path: in the configuration; the two ends of a range have one each, ``<path> low`` and ``<path> high``.
        label: the shortest end of ``path`` that no other column has.
        values: None where the setting does not count.
        is_log: whether it was searched by its logarithm.
    """

    path: str
    label: str
    values: list[Any]
    is_log: bool


@dataclass(frozen=True, eq=False)
class Results:
    """The trials of a study, at one moment: what is asked of them twice is worked out once.

    Attributes:
        folder: of the sweep.
        plan: of the sweep.
        study: Optuna's.
        trials: all of its own, by number.
    """

    folder: Path
    plan: Plan
    study: Study
    trials: list[FrozenTrial]
    _settings: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)

    @cached_property
    def finished(self) -> list[FrozenTrial]:
        """Trials that have a finite value of every objective."""
        return finished(self.trials)

    @cached_property
    def best(self) -> FrozenTrial | None:
        """Of the finished trials the one with the best first objective; of equals the first that no other dominates."""
        return best(self.front, self.plan.objectives[0])

    @cached_property
    def front(self) -> list[FrozenTrial]:
        """The finished trials that no other dominates, by number; with one objective, all that share its best value."""
        signs = [-1.0 if objective.direction == "maximize" else 1.0 for objective in self.plan.objectives]
        losses = [
            tuple(sign * value for sign, value in zip(signs, trial.values or [], strict=True))
            for trial in self.finished
        ]
        front = pareto_front(losses)
        return [trial for trial, loss in zip(self.finished, losses, strict=True) if loss in front]

    def settings(self, trial: FrozenTrial) -> dict[str, Any]:
        """The trial's values of the space, by config path; empty before they are drawn."""
        if trial.number not in self._settings:
            self._settings[trial.number] = self._drawn(trial)
        return self._settings[trial.number]

    def _drawn(self, trial: FrozenTrial) -> dict[str, Any]:
        if not trial.params:
            return {}
        try:
            return self.plan.space.values(trial.params)
        except ValueError:  # its owner died between two of them
            return {}

    def columns(self, trials: Sequence[FrozenTrial]) -> list[Column]:
        """The settings of ``trials``, in the order of the space."""
        ranges = {dimension.path for dimension in self.plan.space.ranges}
        rows = [_flat(self.settings(trial), ranges) for trial in trials]
        paths = list(dict.fromkeys(path for row in rows for path in row))
        log = {
            name
            for trial in trials
            for name, distribution in trial.distributions.items()
            if getattr(distribution, "log", False)
        }
        return [
            Column(path, label, [row.get(path) for row in rows], path in log)
            for path, label in zip(paths, short(paths), strict=True)
        ]

    def curves(self, trial: FrozenTrial, *names: str) -> list[Curve]:
        """The columns ``names`` of the trial's metrics file, which is read once for all; empty ones without it."""
        found = [Curve([], []) for _ in names]
        path = self._run(trial) / runs.METRICS
        if not path.is_file():
            return found
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                for curve, name in zip(found, names, strict=True):
                    try:
                        step, value = float(row.get("step") or ""), float(row.get(name) or "")
                    except ValueError:  # no such cell in this row, or half a number: the process was killed as it wrote
                        continue
                    curve.steps.append(step)
                    curve.values.append(value)
        return found

    def curve(self, trial: FrozenTrial, name: str) -> Curve:
        """One of `curves`."""
        return self.curves(trial, name)[0]

    def summary(self, trial: FrozenTrial) -> dict[str, Any]:
        """What the trial's run says of itself at its end; empty if it is on another machine."""
        path = self._run(trial) / runs.SUMMARY
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def _run(self, trial: FrozenTrial) -> Path:
        return self.folder / trial.user_attrs.get("folder", "never-begun")


def read_results(study: Study, folder: Path) -> Results:
    """The results so far of the study of the sweep in ``folder``."""
    plan = Plan.from_dict(study.user_attrs["plan"])
    # what was taken over from another study ran elsewhere, perhaps otherwise: it is the sampler's, and no result here
    own = [trial for trial in study.get_trials(deepcopy=False) if TAKEN_OVER not in trial.user_attrs]
    return Results(folder, plan, study, own)


def pareto_front(losses: Sequence[tuple[float, ...]]) -> set[tuple[float, ...]]:
    """Those of ``losses``, each a value per objective, less being better, that no other dominates.

    One dominates another that it differs from if it is worse in nothing. Sorted, no entry is dominated by a later one,
    and one that is dominated at all is so by one of the front; with two objectives by the last of the front.

    Examples:
        >>> sorted(pareto_front([(1.0, 3.0), (2.0, 2.0), (2.0, 3.0), (1.0, 3.0), (3.0, 1.0)]))
        [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]
    """
    front: list[tuple[float, ...]] = []
    for loss in sorted(set(losses)):
        rivals = front[-1:] if len(loss) < 3 else front
        if not any(all(ours <= its for ours, its in zip(rival, loss, strict=True)) for rival in rivals):
            front.append(loss)
    return set(front)


def finished(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Those that have a finite value of every objective."""
    return [
        trial for trial in trials if trial.state == TrialState.COMPLETE and all(map(math.isfinite, trial.values or []))
    ]


def best(trials: Iterable[FrozenTrial], objective: Objective) -> FrozenTrial | None:
    """Of the finished among ``trials`` the first with the best value of the first objective."""
    sign = -1 if objective.direction == "maximize" else 1
    return min(finished(trials), key=lambda trial: sign * trial.values[0], default=None)


def word(trial: FrozenTrial) -> str:
    """How it stands with a trial, in a word or two."""
    if trial.state == TrialState.RUNNING:
        return "interrupted" if is_interrupted(trial) else "running"
    if trial.state == TrialState.WAITING:
        return "to be resumed" if trial.user_attrs.get("attempts") else "waiting"
    known = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
    return trial.user_attrs.get("outcome", known[trial.state])


def last_value(trial: FrozenTrial) -> float | None:
    """The first objective's value: of the whole trial, else the last one reported."""
    if trial.values:
        return trial.values[0]
    return trial.intermediate_values[max(trial.intermediate_values)] if trial.intermediate_values else None


def headline(results: Results) -> str:
    """The result in a sentence or two."""
    counts = Counter(word(trial) for trial in results.trials if trial.state != TrialState.FAIL)
    parts = [f"{len(results.finished)} of {max(len(results.trials), results.plan.n_trials)} trials finished"]
    parts += [f"{count} {name}" for name, count in counts.items() if name != FINISHED]
    failed = Counter(word(trial) for trial in results.trials if trial.state == TrialState.FAIL)
    if failed:
        parts.append(f"{failed.total()} failed ({', '.join(f'{name} {count}' for name, count in failed.items())})")
    if results.best is None:
        return f"{', '.join(parts)}. No trial has reached a value."
    which = f" in {results.plan.objectives[0].metric}" if len(results.plan.objectives) > 1 else ""
    return f"{', '.join(parts)}. The best{which} is trial {results.best.number}: {told(results, results.best)}."


def told(results: Results, trial: FrozenTrial) -> str:
    """A finished trial's values."""
    names = [objective.metric for objective in results.plan.objectives]
    return ", ".join(f"{name} {number(value)}" for name, value in zip(names, trial.values, strict=True))


def number(value: Any) -> str:
    """A value for a person to read.

    Examples:
        >>> number(0.97222), number(503930.0), number(3.2e-5), number(None), number(float("nan")), number("tanh")
        ('0.9722', '503,930', '3.2e-05', '', 'NaN', 'tanh')
    """
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    return f"{value:,.0f}" if abs(value) >= 10_000 or isinstance(value, int) else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Seconds for a person to read.

    Examples:
        >>> duration(8.25), duration(200), duration(9000)
        ('8.2 s', '3 min 20 s', '2 h 30 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def short(paths: Sequence[str]) -> list[str]:
    """The shortest end of each dotted path that no other of them shares.

    Examples:
        >>> short(["model.optimizer.lr", "model.network.depth", "model.decoder.depth"])
        ['lr', 'network.depth', 'decoder.depth']
    """
    found = []
    for path in paths:
        parts = path.split(".")
        ends = [".".join(parts[-length:]) for length in range(1, len(parts) + 1)]
        taken = [f".{other}" for other in paths if other != path]
        found.append(next((end for end in ends if not any(other.endswith(f".{end}") for other in taken)), path))
    return found


def _flat(settings: dict[str, Any], ranges: set[str]) -> dict[str, Any]:
    """A range as its two ends, what is no number or word as text, so that a table and an axis can hold them."""
    flat: dict[str, Any] = {}
    for path, value in settings.items():
        if path in ranges:
            flat |= {f"{path} low": value[0], f"{path} high": value[1]}
        else:
            is_plain = isinstance(value, int | float | str) and not isinstance(value, bool)
            flat[path] = value if is_plain else json.dumps(value)
    return flat
