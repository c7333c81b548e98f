"""The tables of a sweep's report: rows of text."""

import math
import shlex
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import optuna
from optuna.trial import FrozenTrial, TrialState

from nala_platform import runs

from .part import Part
from .results import SEED, Results, duration, number, short, word


class Table(NamedTuple):
    """A table, its cells as they are read.

    Attributes:
        header: of its columns.
        rows: as many cells each.
        marked: places of rows to stand out.
    """

    header: list[str]
    rows: list[list[str]]
    marked: tuple[int, ...] = ()


def outcomes(results: Results) -> Table:
    """How many trials ended how, the most frequent first, with the reasons that were given."""
    words = [word(trial) for trial in results.trials]
    rows = []
    for name, count in Counter(words).most_common():
        trials = [trial for trial, its in zip(results.trials, words, strict=True) if its == name]
        rows.append([name, str(count), _some([trial.number for trial in trials]), "; ".join(_reasons(trials))])
    return _without_empty(Table(["outcome", "trials", "which", "why"], rows))


def all_trials(results: Results) -> Table:
    """Every trial, what it was given and what it came to."""
    columns = results.columns(results.trials)
    names = short([objective.metric for objective in results.plan.objectives])
    best, front = results.best, {trial.number for trial in results.front}
    rows = []
    for place, trial in enumerate(results.trials):
        seconds = trial.user_attrs.get("seconds")
        rows.append(
            [
                str(trial.number),
                word(trial),
                *_values(trial, len(names)),
                *(number(column.values[place]) for column in columns),
                "" if seconds is None else duration(seconds),
                str(len(trial.user_attrs.get("attempts", []))),
                trial.user_attrs.get("reason", ""),
            ]
        )
    marked = front if len(names) > 1 else {best.number} if best else set()
    header = ["trial", "outcome", *names, *(column.label for column in columns), "time", "attempts", "reason"]
    places = tuple(place for place, trial in enumerate(results.trials) if trial.number in marked)
    return _without_empty(Table(header, rows, places))


def over_seeds(results: Results) -> Table | None:
    """Mean and standard deviation of each score over the seeds, a row for each other setting; None without seeds.

    The scores are the objectives, and the same metrics on the test split. The deviation is the sample's (n - 1).
    """
    columns = results.columns(results.trials)
    if SEED not in (column.path for column in columns):
        return None
    others = [column for column in columns if column.path != SEED]
    groups: dict[tuple[Any, ...], list[FrozenTrial]] = defaultdict(list)
    for place, trial in enumerate(results.trials):
        if results.settings(trial):
            groups[tuple(column.values[place] for column in others)].append(trial)
    metrics = _scores(results)
    ids = {trial.number for trial in results.finished}
    rows, keys = [], []
    for settings, trials in groups.items():
        done = [trial for trial in trials if trial.number in ids]
        found = [[value for trial in done if (value := _score(results, trial, name)) is not None] for name in metrics]
        rows.append([*map(number, settings), f"{len(done)} of {len(trials)}", *map(mean_and_deviation, found)])
        keys.append(statistics.fmean(found[0]) if found[0] else None)
    sign = -1 if results.plan.objectives[0].direction == "maximize" else 1
    order = sorted(range(len(rows)), key=lambda place: math.inf if keys[place] is None else sign * keys[place])
    header = [*(column.label for column in others), "seeds finished", *metrics]
    return Table(header, [rows[place] for place in order], (0,) if ids else ())


def mean_and_deviation(values: Sequence[float]) -> str:
    """The mean ± the sample's standard deviation; one value has none.

    Examples:
        >>> mean_and_deviation([0.9, 0.94]), mean_and_deviation([0.9]), mean_and_deviation([])
        ('0.92 ± 0.028', '0.9 (one run)', '')
    """
    if len(values) < 2:
        return f"{number(values[0])} (one run)" if values else ""
    return f"{number(statistics.fmean(values))} ± {statistics.stdev(values):.2g}"


def pareto(results: Results) -> Table | None:
    """The trials that no other is better than in every objective; None with one objective."""
    if len(results.plan.objectives) < 2:
        return None
    columns = results.columns(results.front)
    rows = [
        [str(trial.number), *map(number, trial.values), *(number(column.values[place]) for column in columns)]
        for place, trial in enumerate(results.front)
    ]
    names = short([objective.metric for objective in results.plan.objectives])
    return Table(["trial", *names, *(column.label for column in columns)], rows)


def settings(results: Results, trial: FrozenTrial) -> Table:
    """What the trial was given, by config path."""
    return Table(["setting", "value"], [[path, _rounded(value)] for path, value in results.settings(trial).items()])


def scores(results: Results, trial: FrozenTrial) -> Table | None:
    """The trial on the test split, beside the data's trivial baselines; None if its summary is not here."""
    summary = results.summary(trial)
    metrics = summary.get("metrics", trial.user_attrs.get("metrics", {}))
    names = [name for name in metrics if name.startswith("test/") and name.count("/") == 1]
    if not names:
        return None
    rows = [[f"trial {trial.number}", *(number(metrics[name]) for name in names)]]
    for baseline, values in summary.get("baselines", {}).items():
        rows.append([baseline, *(number(values.get(name.removeprefix("test/"))) for name in names)])
    return Table(["", *names], rows, (0,))


def protocol(results: Results) -> Table:
    """What was searched how, on what data, with which versions."""
    plan = results.plan
    longest = plan.warmup.describe() if plan.pruner is not None else ""
    taken = len(results.study.get_trials(deepcopy=False)) - len(results.trials)
    rows = [
        ["task", plan.task],
        *(["objective", f"{one.metric}, {one.direction}, its {one.value} value"] for one in plan.objectives),
        ["trials", str(plan.n_trials)],
        *([["trials of another study", f"{taken}, known to the sampler alone"]] if taken else []),
        ["sampler", _made_of(plan.sampler)],
        ["pruner", _made_of(plan.pruner)],
        *([["nothing is pruned before", f"the longest warm-up has ended: {longest}"]] if longest else []),
        ["seed of the sampler", str(plan.seed)],
        ["given to every run", shlex.join(plan.overrides) or "nothing"],
        *([path, _text(line)] for path, line in plan.space.canonical().items()),
    ]
    summary = next((found for trial in results.finished if (found := results.summary(trial))), {})
    rows += [[f"data: {key}", _text(value)] for key, value in summary.get("protocol", {}).items()]
    versions = summary.get("versions", runs.versions()) | {"optuna": optuna.__version__}
    return Table(["", ""], [*rows, ["versions", ", ".join(f"{name} {value}" for name, value in versions.items())]])


def _without_empty(table: Table) -> Table:
    """Without the columns that say nothing."""
    kept = [place for place in range(len(table.header)) if any(row[place] for row in table.rows)]
    if not table.rows:
        return table
    return Table([table.header[at] for at in kept], [[row[at] for at in kept] for row in table.rows], table.marked)


def _rounded(value: Any) -> str:
    return f"[{', '.join(map(_rounded, value))}]" if isinstance(value, list) else number(value)


def _values(trial: FrozenTrial, count: int) -> list[str]:
    """A pruned trial has been judged by the first objective alone."""
    if trial.state == TrialState.FAIL or not trial.values:
        return [""] * count
    return [number(value) for value in trial.values] + [""] * (count - len(trial.values))


def _scores(results: Results) -> list[str]:
    names = []
    for objective in results.plan.objectives:
        test = objective.metric.replace("val/", "test/", 1)
        known = any(test in trial.user_attrs.get("metrics", {}) for trial in results.finished)
        names += [objective.metric, test] if test != objective.metric and known else [objective.metric]
    return names


def _score(results: Results, trial: FrozenTrial, name: str) -> float | None:
    for objective, value in zip(results.plan.objectives, trial.values, strict=True):
        if objective.metric == name:
            return value
    value = trial.user_attrs.get("metrics", {}).get(name)
    return value if value is not None and math.isfinite(value) else None


def _reasons(trials: list[FrozenTrial]) -> list[str]:
    counts = Counter(trial.user_attrs["reason"] for trial in trials if trial.user_attrs.get("reason"))
    return [f"{reason} ({count} times)" if count > 1 else reason for reason, count in counts.most_common(5)]


def _some(numbers: list[int], most: int = 12) -> str:
    shown = ", ".join(map(str, numbers[:most]))
    return f"{shown}, …" if len(numbers) > most else shown


def _made_of(part: Part | None) -> str:
    if part is None:
        return "none"
    return f"{part.class_path}({', '.join(f'{name}={value}' for name, value in part.init_args.items())})"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(entry)}" for key, entry in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)
