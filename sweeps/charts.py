"""The pictures of a sweep's report, each a figure, or None where there is nothing to show yet.

Dark is good in all of them: the colour of a trial is its first objective, the best being the darkest.
"""

import math
import warnings
from itertools import accumulate
from typing import Any

import optuna
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from optuna.trial import FrozenTrial, TrialState

from .plan import Objective
from .results import Curve, Results, short
from .scales import Bounds, Shades, bounds, is_wide

FEWEST = 6  # finished trials for an importance: with fewer it says nothing
FAINT, FAILED, BEST = "0.62", "#c0392b", "#c2185b"


def shades(results: Results) -> Shades:
    """Colours of the finished trials' first objective."""
    return Shades(bounds([trial.values[0] for trial in results.finished], results.plan.objectives[0]))


def history(results: Results) -> Figure | None:
    """The value of each trial by its number, and the best so far; a panel an objective."""
    if not results.finished:
        return None
    objectives = results.plan.objectives
    figure = Figure(figsize=(9, 3.4 * len(objectives)), layout="constrained")
    for place, (axes, objective) in enumerate(
        zip(figure.subplots(len(objectives), 1, squeeze=False)[:, 0], objectives, strict=True)
    ):
        found = [(trial.number, trial.values[place]) for trial in results.finished]
        limits = bounds([value for _, value in found], objective)
        _points(axes, found, limits, marker="o", color="#31688e", label="finished")
        if place == 0:
            pruned = [(t.number, t.values[0]) for t in results.trials if t.state == TrialState.PRUNED and t.values]
            _points(axes, pruned, limits, marker="x", color=FAINT, label="pruned, its last value")
        failed = [trial.number for trial in results.trials if trial.state == TrialState.FAIL]
        if failed:
            edge = axes.get_xaxis_transform()
            axes.plot(failed, [0.02] * len(failed), "|", color=FAILED, ms=9, label="failed", transform=edge)
        choose = min if objective.direction == "minimize" else max
        running = list(accumulate((value for _, value in found), choose))
        last = results.trials[-1].number
        ends = [*(number for number, _ in found), last], [*running, running[-1]]
        axes.step(*ends, where="post", color=BEST, lw=1.4, label="best so far")
        _dress(axes, "trial", objective.metric)
        axes.set_xlim(results.trials[0].number - 0.5, last + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def importances(results: Results) -> list[dict[str, float]]:
    """For each objective the share of each parameter, summing to 1, by PED-ANOVA; empty with too few finished trials.

    How much the best trials' parameters are distributed otherwise than all finished trials'. The best are a tenth of
    them, but five at least where that is no more than half (Watanabe et al. 2023, arXiv 2304.10255, advise so).
    """
    trials = results.finished
    if len(trials) < FEWEST:
        return []
    # heavy: scikit-learn, SciPy and pandas, for sweeps that have enough trials
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    study = optuna.create_study(directions=results.study.directions)
    study.add_trials(trials)
    evaluator = PedAnovaImportanceEvaluator(target_quantile=min(0.5, max(0.1, 5 / len(trials))))
    found = []
    for place, objective in enumerate(results.plan.objectives):
        sign = 1 if objective.direction == "minimize" else -1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a target is taken to be minimised
            shares = get_param_importances(
                study, evaluator=evaluator, target=lambda trial, at=place, sign=sign: sign * trial.values[at]
            )
        found.append(shares)
    return found


def importance(results: Results) -> Figure | None:
    """Bars of `importances`; a panel an objective."""
    found = importances(results)
    if not found or len(found[0]) < 2:
        return None
    names = list(found[0])[::-1]
    labels = short([_of_range(name, results) for name in names])
    figure = Figure(figsize=(9, 0.8 + 0.36 * len(names)), layout="constrained")
    for axes, shares, objective in zip(
        figure.subplots(1, len(found), squeeze=False, sharey=True)[0], found, results.plan.objectives, strict=True
    ):
        bars = axes.barh(labels, [shares[name] for name in names], color="#31688e", height=0.6)
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
        axes.set_xlim(0, 1.15 * max(shares.values()))
        _dress(axes, f"importance for {objective.metric}", "")
    return figure


def learning_curves(results: Results) -> Figure | None:
    """Training loss and first objective of every trial against its steps."""
    objective = results.plan.objectives[0]
    name = objective.metric if objective.metric.startswith("val/") else "val/loss"
    losses, scores = [], []
    for trial in results.trials:
        loss, score = results.curves(trial, "train/loss_epoch", name)
        losses.append(loss)
        scores.append(score if score.steps or name != objective.metric else _reported(trial))
    if not any(curve.steps for curve in scores):
        return None
    colour = shades(results) if results.finished else None
    best = results.best.number if results.best else None
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, curves, label in zip(panels, (losses, scores), ("training loss of an epoch", name), strict=True):
        for trial, curve in zip(results.trials, curves, strict=True):
            # a curve of one or two points would not be seen as a line
            marker = "o" if len(curve.steps) < 3 else ""
            axes.plot(*curve, marker=marker, ms=3, **_style(trial, colour, trial.number == best))
        if (typical := _typical(results, curves, colour)) is not None:
            typical.fit(axes)
        _dress(axes, "optimizer step", label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if colour is not None:
        colour.bar(figure, list(panels), objective)
    _explain(panels[1], results)
    return figure


def pareto_front(results: Results) -> Figure | None:
    """Each further objective against the first, the front joined; None with one objective."""
    objectives, trials = results.plan.objectives, results.finished
    if len(objectives) < 2 or not trials:
        return None
    figure = Figure(figsize=(6.2 * (len(objectives) - 1), 4.4), layout="constrained")
    front = sorted(results.front, key=lambda trial: trial.values[0])
    for place, axes in enumerate(figure.subplots(1, len(objectives) - 1, squeeze=False)[0], 1):
        across, up = ([trial.values[at] for trial in trials] for at in (place, 0))
        axes.scatter(across, up, color=FAINT, s=24, label="dominated")
        best = [trial.values[place] for trial in front], [trial.values[0] for trial in front]
        # with more objectives the front is a surface, and a line through its shadow would mean nothing
        axes.plot(*best, color=BEST, marker="o", ms=6, lw=0.8 if len(objectives) == 2 else 0, label="Pareto front")
        for rank, trial in enumerate(front):
            at = (trial.values[place], trial.values[0])
            # neighbours' labels on either side, so that they do not cover each other
            offset, side = ((6, -10), "left") if rank % 2 else ((-5, 4), "right")
            axes.annotate(str(trial.number), at, xytext=offset, textcoords="offset points", fontsize=8, ha=side)
        if is_wide(across):
            axes.set_xscale("log")
        _dress(axes, _aim(objectives[place]), _aim(objectives[0]))
        axes.margins(0.08)
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _points(axes: Axes, found: list[tuple[int, float]], limits: Bounds, **style: Any) -> None:
    """Points within the limits; those beyond as arrows on the edge."""
    low, high = limits.limits()
    near = [(n, value) for n, value in found if low <= value <= high]
    if near:
        axes.plot(*zip(*near, strict=True), linestyle="", ms=5, **style)
    for marker, far in (("^", [n for n, value in found if value > high]), ("v", [n for n, v in found if v < low])):
        if far:
            edge = 0.97 if marker == "^" else 0.03
            options: dict[str, Any] = style | {"marker": marker, "label": f"{style['label']}, beyond the axis"}
            axes.plot(far, [edge] * len(far), linestyle="", ms=6, transform=axes.get_xaxis_transform(), **options)
    limits.fit(axes)


def _of_range(name: str, results: Results) -> str:
    """A parameter's name; of a range's two, what they are of is told before a space, as in `Column`."""
    path, _, end = name.rpartition(".")
    return f"{path} {end}" if path in (dimension.path for dimension in results.plan.space.ranges) else name


def _typical(results: Results, curves: list[Curve], colour: Shades | None) -> Bounds | None:
    """What an axis is to show: the curves of the trials that did not end far off."""
    low, high = colour.bounds.limits() if colour else (math.inf, -math.inf)
    shown = [
        value
        for trial, curve in zip(results.trials, curves, strict=True)
        if trial.state == TrialState.COMPLETE and trial.values and low <= trial.values[0] <= high
        for value in curve.values
        if math.isfinite(value)
    ]
    return Bounds(min(shown), max(shown), is_wide(shown)) if shown else None


def _reported(trial: FrozenTrial) -> Curve:
    """What the trial reported, where its run's file is not here: it may have run on another machine."""
    steps = sorted(trial.intermediate_values)
    return Curve([float(step) for step in steps], [trial.intermediate_values[step] for step in steps])


def _style(trial: FrozenTrial, colour: Shades | None, is_best: bool) -> dict[str, Any]:
    if is_best:
        return {"color": BEST, "lw": 2.4, "zorder": 5}
    if trial.state == TrialState.COMPLETE and colour is not None and math.isfinite(trial.values[0]):
        return {"color": colour(trial.values[0]), "lw": 1.1, "alpha": 0.85, "zorder": 3}
    if trial.state == TrialState.FAIL:
        return {"color": FAILED, "lw": 1.0, "ls": ":", "zorder": 2}
    return {"color": FAINT, "lw": 0.9, "ls": "--", "zorder": 1}


def _explain(axes: Axes, results: Results) -> None:
    states = {trial.state for trial in results.trials}
    lines = [Line2D([], [], color=BEST, lw=2.4, label=f"best: trial {results.best.number}")] if results.best else []
    if states - {TrialState.COMPLETE, TrialState.FAIL, TrialState.WAITING}:
        lines.append(Line2D([], [], color=FAINT, lw=0.9, ls="--", label="pruned or not at its end"))
    if TrialState.FAIL in states:
        lines.append(Line2D([], [], color=FAILED, lw=1.0, ls=":", label="failed"))
    # where few curves end; matplotlib's own search for a place takes longer than all the drawing
    corner = "lower right" if results.plan.objectives[0].direction == "maximize" else "upper right"
    axes.legend(handles=lines, frameon=False, fontsize=8, loc=corner)


def _aim(objective: Objective) -> str:
    return f"{objective.metric} ({'less' if objective.direction == 'minimize' else 'more'} is better)"


def _dress(axes: Axes, across: str, up: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
