"""Pictures of the searched space: every setting of every trial, and the plane of an alpha range."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.tri import Triangulation
from optuna.trial import TrialState

from .charts import BEST, FAINT, shades
from .dimension import AlphaRange
from .results import Column, Results, short

_APART = 0.035  # of an axis's height: marks that are nearer would cover each other


def parallel(results: Results) -> Figure | None:
    """Each finished trial as a line through its settings to its value; None with fewer than two."""
    trials = sorted(results.finished, key=lambda trial: trial.values[0])
    if results.plan.objectives[0].direction == "minimize":
        trials.reverse()  # the best is drawn last, so above
    columns = [column for column in results.columns(trials) if len(set(column.values)) > 1]
    if len(trials) < 2 or not columns:
        return None
    objective, colour = results.plan.objectives[0], shades(results)
    low, high = colour.bounds.ends
    values = [min(max(trial.values[0], low), high) for trial in trials]
    columns.append(Column(objective.metric, objective.metric, values, colour.bounds.is_log))
    figure = Figure(figsize=(max(7.0, 1.7 * len(columns)), 4.6), layout="constrained")
    axes = figure.subplots()
    heights = [_axis(axes, place, column) for place, column in enumerate(columns)]
    best = results.best.number if results.best else None
    for place, trial in enumerate(trials):
        is_best = trial.number == best
        line = [rows[place] for rows in heights]
        style = {"color": BEST, "lw": 2.4} if is_best else {"color": colour(trial.values[0]), "lw": 1.1, "alpha": 0.8}
        axes.plot(range(len(columns)), line, marker=".", ms=4, **style)
    axes.set_xticks(range(len(columns)), [column.label.replace(" ", "\n") for column in columns])
    axes.set_xlim(-0.15, len(columns) - 0.4)
    axes.set_ylim(-0.04, 1.04)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    colour.bar(figure, axes, objective)
    return figure


def _axis(axes: Axes, place: int, column: Column) -> list[float]:
    """Draw one upright axis with its marks; the height of each value on it, NaN where the setting does not count."""
    known = [value for value in column.values if value is not None]
    if any(isinstance(value, str) for value in known):
        words = sorted(set(map(str, known)))
        height: dict[Any, float] = {word: (at + 0.5) / len(words) for at, word in enumerate(words)}
        marks = {word: height[word] for word in words}
        heights = [height[str(value)] if value is not None else np.nan for value in column.values]
    else:
        scale = np.log10 if column.is_log else np.asarray
        low, high = scale(min(known)), scale(max(known))
        span = high - low or 1.0
        levels = scale(sorted(set(known))) if len(set(known)) < 6 else np.linspace(low, high, 5)
        marks = {f"{10**level if column.is_log else level:.3g}": (level - low) / span for level in levels}
        heights = [float((scale(value) - low) / span) if value is not None else np.nan for value in column.values]
    axes.axvline(place, color="0.75", lw=0.8, zorder=0)
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6}
    above = -1.0
    for text, at in sorted(marks.items(), key=lambda mark: mark[1]):
        if at - above < _APART:
            continue
        above = at
        axes.annotate(text, (place, at), xytext=(4, 0), textcoords="offset points", fontsize=7, va="center", bbox=box)
    return heights


def contours(results: Results) -> Figure | None:
    """Low against high end of each range of the space, coloured by the first objective; None without a range."""
    names = [f"{dimension.path} low" for dimension in results.plan.space.ranges]
    columns = {column.path: column for column in results.columns(results.finished)}
    ranges = [one for one, name in zip(results.plan.space.ranges, names, strict=True) if name in columns]
    if not ranges:
        return None
    objective, colour = results.plan.objectives[0], shades(results)
    figure = Figure(figsize=(6.6 * len(ranges), 5.2), layout="constrained")
    panels = figure.subplots(1, len(ranges), squeeze=False)[0]
    for axes, dimension, label in zip(panels, ranges, short([one.path for one in ranges]), strict=True):
        ends = [(columns[f"{dimension.path} {end}"].values) for end in ("low", "high")]
        values = [trial.values[0] for trial in results.finished]
        points = np.array([row for row in zip(*ends, values, strict=True) if row[0] is not None], float)
        low, high = colour.bounds.ends
        clipped = points[:, 2].clip(low, high)
        levels = np.geomspace(low, high, 13) if colour.bounds.is_log else np.linspace(low, high, 13)
        if high > low and (mesh := _mesh(points)) is not None:
            axes.tricontourf(mesh, clipped, levels=levels, cmap=colour.map, norm=colour.norm, alpha=0.55)
        axes.scatter(points[:, 0], points[:, 1], c=clipped, cmap=colour.map, norm=colour.norm, edgecolor="k", s=38)
        _others(axes, results, dimension)
        _frame(axes, dimension, label)
    colour.bar(figure, list(panels), objective)
    return figure


def _mesh(points: np.ndarray) -> Triangulation | None:
    """Triangles between the points; None where all lie on a line."""
    places = np.unique(points[:, :2], axis=0)
    if len(places) < 4 or np.linalg.matrix_rank(places - places.mean(0), tol=1e-6 * np.ptp(places)) < 2:
        return None
    return Triangulation(points[:, 0], points[:, 1])


def _others(axes: Axes, results: Results, dimension: AlphaRange) -> None:
    """The best trial, and where trials were given up or failed."""
    for state, marker, label in ((TrialState.PRUNED, "x", "pruned"), (TrialState.FAIL, "+", "failed")):
        found = [results.settings(trial).get(dimension.path) for trial in results.trials if trial.state == state]
        if places := [place for place in found if place is not None]:
            axes.plot(*zip(*places, strict=True), marker, color="0.25", ms=6, label=label)
    best = results.settings(results.best).get(dimension.path) if results.best else None
    if best is not None:
        axes.plot(*best, marker="*", color=BEST, ms=15, mec="white", ls="", label="best")
        axes.legend(frameon=False, fontsize=8, loc="lower right")


def _frame(axes: Axes, dimension: AlphaRange, label: str) -> None:
    """The room that the space leaves: below the line there are no ranges."""
    low, high, width = dimension.low, dimension.high, dimension.min_width
    axes.fill_between([low, high], [low + width, high + width], low, color=FAINT, alpha=0.25, lw=0)
    margin = 0.03 * (high - low)
    axes.set_xlim(low - margin, high - width + margin)
    axes.set_ylim(low + width - margin, high + margin)
    axes.set_xlabel(f"{label}, low end")
    axes.set_ylabel(f"{label}, high end")
    axes.spines[["top", "right"]].set_visible(False)
