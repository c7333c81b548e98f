"""What a sweep leaves for a person: ``report.html`` with its pictures, and the best trial as a config file."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from matplotlib.figure import Figure
from optuna.study import Study
from optuna.trial import FrozenTrial

from nala_platform import argv, runs, yaml_files
from nala_platform.errors import UserError

from . import charts, landscape, tables
from .objective import checkpoint_choice
from .page import command, page, picture, section, table, text
from .results import Results, headline, read_results, told

REPORT, PICTURES, BEST = "report.html", "report", "best.yaml"


class Chart(NamedTuple):
    """A picture of the report: its file's name, its heading, how it is drawn and what it shows."""

    name: str
    title: str
    draw: Callable[[Results], Figure | None]
    caption: str


CHARTS = (
    Chart("history", "History", charts.history, "Each trial's value by its number, and the best until then."),
    Chart(
        "importance",
        "Importance of the settings",
        charts.importance,
        "Shares of PED-ANOVA: how far the best trials' values of a setting differ from those of all finished trials. "
        "They tell which settings decided within this sweep, and are rough with few trials. Of a range, low is its low "
        "end and fill the share taken of the room above it.",
    ),
    Chart(
        "learning_curves",
        "Learning curves",
        charts.learning_curves,
        "Every trial, as its metrics.csv tells; the darker, the better its value.",
    ),
    Chart(
        "parallel",
        "Settings and value of each trial",
        landscape.parallel,
        "One line a finished trial, from its settings to its value on the right; the darker, the better; the best is "
        "thick. Settings that were the same in all trials are left out.",
    ),
    Chart(
        "contour",
        "Where the range lies",
        landscape.contours,
        "A point a finished trial. The surface between them is interpolated, and the other settings differ from point "
        "to point. Below the grey edge the space has no ranges.",
    ),
    Chart(
        "pareto",
        "Pareto front",
        charts.pareto_front,
        "Trials that no other is better than in every objective, by number.",
    ),
)


def write_report(study: Study, folder: Path) -> None:
    """Write ``report.html`` and the pictures in ``report/`` into the sweep's ``folder``, of what is known by now."""
    results = read_results(study, folder)
    (folder / PICTURES).mkdir(exist_ok=True)
    parts = [text(headline(results), "lead"), *_best(results)]
    if (seeds := tables.over_seeds(results)) is not None:
        note = "Mean ± sample standard deviation over the finished seeds, the best mean first."
        parts.append(section("Comparison over seeds", table(seeds), text(note)))
    parts += [drawn for chart in CHARTS if (drawn := _drawn(chart, results))]
    if 0 < len(results.finished) < charts.FEWEST:
        parts.append(text(f"An importance of the settings needs {charts.FEWEST} finished trials."))
    if (front := tables.pareto(results)) is not None and front.rows:
        parts.append(section("Trials of the Pareto front", table(front)))
    parts += [
        section("How the trials ended", table(tables.outcomes(results))),
        section("All trials", table(tables.all_trials(results))),
        section("Protocol", table(tables.protocol(results))),
    ]
    runs.write_atomic(folder / REPORT, page(results.plan.title, parts))


def write_best(study: Study, folder: Path) -> None:
    """Write ``best.yaml``: what the best trial was given, for ``nala fit --task T --config best.yaml``.

    With several objectives it is the front's trial with the best first one.

    Raises:
        UserError: no trial is finished.
    """
    results = read_results(study, folder)
    best = results.best
    if best is None:
        raise UserError(f"{folder}: no trial has reached a value, so there is no best one")
    comment = (
        f"# {' '.join(results.plan.title.split())}: trial {best.number}, {told(results, best)}\n"
        f"# nala fit --task {results.plan.task} --config {shlex.quote(str(folder / BEST))}\n"
    )
    content = yaml_files.dump(config(results, best), width=120)
    runs.write_atomic(folder / BEST, comment + content)


def config(results: Results, trial: FrozenTrial) -> dict[str, Any]:
    """What a trial was given, as a config file's keys: the overrides' files, then their words, then the space's values.

    A key goes below ``init_args`` where a file has spelled a class out; elsewhere ``nala fit`` finds the place itself.
    """
    found: dict[str, Any] = {}
    typed: list[tuple[str, Any]] = []
    words = list(results.plan.overrides)
    while words:
        flag, equals, value = words.pop(0).partition("=")
        if not equals:
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
        if flag in ("--config", "-c"):
            _merge(found, yaml_files.read_keys(argv.conf_file(value)))
        else:
            typed.append((flag.removeprefix("--"), _value(value)))
    given = sorted(results.settings(trial).items(), key=lambda item: item[0].count("."))
    for path, value in [*typed, *given]:
        _put(found, [key for key in path.split(".") if key != "init_args"], value)
    return found


def _value(text: str) -> Any:
    """What a word means in a file: a number, a list and so on as such, everything else as the text that was typed."""
    try:
        value = yaml_files.load(text)
    except yaml.YAMLError:
        return text
    is_plain = value is not None or text == "null"
    return text if isinstance(value, str) or not is_plain or (isinstance(value, dict) and text[0] != "{") else value


def _best(results: Results) -> list[str]:
    best = results.best
    if best is None:
        return []
    task = results.plan.task
    words = ["nala", "fit", "--task", task, *results.plan.overrides]
    words += results.plan.space.words(results.settings(best))
    parts = [
        command(f"nala fit --task {task} --config {shlex.quote(str(results.folder / BEST))}\n\n# or\n{_typed(words)}"),
        table(tables.settings(results, best)),
        text(f"Its run folder, with its checkpoints, is {best.user_attrs.get('folder')} beside this page."),
    ]
    if (scores := tables.scores(results, best)) is not None:
        monitor, mode = checkpoint_choice(task, results.plan.overrides)
        best_by = f"by the {'highest' if mode == 'max' else 'lowest'} {monitor}"
        parts.append(text(f"Its best checkpoint, {best_by}, on the test split, beside the data's baselines:"))
        parts.append(table(scores))
    return [section(f"The best trial: {best.number}", *parts)]


def _typed(words: list[str]) -> str:
    """A command over some lines, as a shell reads it."""
    lines = [shlex.join(words[:4])]
    for part in words[4:]:
        if part.startswith("-"):
            lines.append("  " + shlex.quote(part))
        else:
            lines[-1] += f" {shlex.quote(part)}"
    return " \\\n".join(lines)


def _drawn(chart: Chart, results: Results) -> str:
    path = results.folder / PICTURES / f"{chart.name}.png"
    figure = chart.draw(results)
    if figure is None:
        path.unlink(missing_ok=True)  # of an earlier report
        return ""
    runs.save_figure(figure, path)
    return section(chart.title, picture(path, chart.caption))


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _put(node: dict[str, Any], keys: list[str], value: Any) -> None:
    """Set ``value`` at the end of ``keys``, through ``init_args`` where a class is spelled out."""
    for place, key in enumerate(keys):
        if {"class_path", "init_args"} & node.keys() and key not in ("class_path", "dict_kwargs"):
            node = node.setdefault("init_args", {})
        if place == len(keys) - 1:
            node[key] = value
        elif isinstance(node.get(key), str):
            node[key] = {"class_path": node[key]}  # a class alone, and now what it is built with
            node = node[key]
        else:
            if not isinstance(node.get(key), dict):
                node[key] = {}
            node = node[key]
