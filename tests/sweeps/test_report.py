"""The report of a sweep: what its pictures show, and that any study has one."""

import base64
import csv
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from made import (
    ALPHA,
    add,
    alpha_params,
    alpha_study,
    front_study,
    loss_study,
    make_study,
    mechanisms_study,
)
from matplotlib.backends.backend_agg import FigureCanvasAgg
from nala_platform.sweeps import charts, landscape, results
from nala_platform.sweeps.report import CHARTS, write_report
from nala_platform.sweeps.results import pareto_front, read_results
from nala_platform.sweeps.space import Space
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from PIL import Image

VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """Collects headings and images, and sees to it that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts.append((self.open[-1], data))

    @property
    def headings(self) -> list[str]:
        return [text for tag, text in self.texts if tag == "h2"]


def written(study: Study, folder: Path) -> Page:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of matplotlib's: limits that are equal, a logarithm of 0, no room
        write_report(study, folder)
    page = Page((folder / "report.html").read_text())
    pictures = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(pictures) == len(list((folder / "report").iterdir()))
    for attributes in pictures:
        kind, data = (attributes["src"] or "").split(",")
        content = base64.b64decode(data)
        assert kind == "data:image/png;base64"
        assert content == (folder / "report" / f"{attributes['alt']}.png").read_bytes()
        image = Image.open(BytesIO(content)).convert("L")
        assert image.width >= 600 and len(image.getcolors() or range(300)) > 10
    return page


def alpha(folder: Path, *ends: tuple[list[float] | None, TrialState]) -> Study:
    study = make_study(ALPHA)
    for place, (values, state) in enumerate(ends):
        curve = [(10, 0.4), (20, math.nan if state == TrialState.FAIL else 0.5)]
        add(study, folder, alpha_params(1 + place / 9, 0.5, "tanh", 1e-3, 0.1), values, state, curve)
    return study


def of_several_objectives(folder: Path) -> Study:
    return front_study(folder, ("val/top1", "parameters", "seconds_per_step"))


ODD: dict[str, Callable[[Path], Study]] = {
    "nothing": lambda folder: alpha(folder),
    "one": lambda folder: alpha(folder, ([0.5], TrialState.COMPLETE)),
    "two alike": lambda folder: alpha(folder, *[([0.5], TrialState.COMPLETE)] * 2),
    "seven alike": lambda folder: alpha(folder, *[([0.5], TrialState.COMPLETE)] * 7),
    "zeros": lambda folder: alpha(folder, *[([0.0], TrialState.COMPLETE)] * 7),
    "only failures": lambda folder: alpha(folder, *[(None, TrialState.FAIL)] * 3),
    "only pruned": lambda folder: alpha(folder, *[([0.4], TrialState.PRUNED)] * 3),
    "one runs": lambda folder: alpha(folder, (None, TrialState.RUNNING)),
    "infinite": lambda folder: alpha(folder, ([math.inf], TrialState.COMPLETE), ([0.5], TrialState.COMPLETE)),
    "only infinite": lambda folder: alpha(folder, ([math.inf], TrialState.COMPLETE)),
    "one of two objectives": lambda folder: front_study(folder, trials=1),
    "three objectives": of_several_objectives,
    "failures and one": lambda folder: alpha(folder, (None, TrialState.FAIL), ([0.5], TrialState.COMPLETE)),
    "sizes apart": loss_study,
    "alpha": alpha_study,
    "mechanisms": mechanisms_study,
}
VALUELESS = {"nothing", "only failures", "only pruned", "one runs", "only infinite"}


@pytest.mark.parametrize("name", ODD)
def test_every_study_has_a_report(name: str, tmp_path: Path):
    page = written(ODD[name](tmp_path), tmp_path)
    assert page.headings[-3:] == ["How the trials ended", "All trials", "Protocol"]
    lead = next(text for tag, text in page.texts if tag == "p")
    assert ("No trial has reached a value" in lead) == (name in VALUELESS)


def test_a_whole_report_has_its_parts(tmp_path: Path):
    assert written(alpha_study(tmp_path), tmp_path).headings == [
        "The best trial: 2",
        "History",
        "Importance of the settings",
        "Learning curves",
        "Settings and value of each trial",
        "Where the range lies",
        "How the trials ended",
        "All trials",
        "Protocol",
    ]
    assert "Comparison over seeds" in written(mechanisms_study(tmp_path / "m"), tmp_path / "m").headings
    assert "Trials of the Pareto front" in written(front_study(tmp_path / "f"), tmp_path / "f").headings


def test_nothing_comes_from_elsewhere_and_text_stays_text(tmp_path: Path):
    study = make_study({**ALPHA, "title": "a <b>title</b> & more"})
    reason = "<script>alert('no')</script> [Errno 28]"
    add(study, tmp_path, alpha_params(1, 0.5, "tanh", 1e-3, 0), None, TrialState.FAIL, outcome="crash", reason=reason)
    page = written(study, tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "script" not in {tag for tag, _ in page.tags}
    assert re.findall(r"(?:src|href|url)\W+(?!data:)\w+:?//", text) == [] and "@import" not in text
    assert ("h1", "a <b>title</b> & more") in page.texts
    assert any(reason in words for _, words in page.texts)


def test_a_second_report_leaves_no_picture_of_the_first(tmp_path: Path):
    written(alpha_study(tmp_path), tmp_path)
    written(alpha(tmp_path / "other"), tmp_path)
    assert list((tmp_path / "report").iterdir()) == []


@pytest.mark.parametrize("name", ["alpha", "mechanisms", "three objectives", "sizes apart", "one"])
def test_no_label_is_cut_off(name: str, tmp_path: Path):
    results = read_results(ODD[name](tmp_path), tmp_path)
    drawn = [figure for chart in CHARTS if (figure := chart.draw(results)) is not None]
    assert len(drawn) >= 3
    for figure in drawn:
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        used, (width, height) = figure.get_tightbbox(canvas.get_renderer()), figure.get_size_inches()
        assert used.x0 >= -0.01 and used.y0 >= -0.01 and used.x1 <= width + 0.01 and used.y1 <= height + 0.01


def test_importances_sum_to_one_and_find_the_setting_that_decides(tmp_path: Path):
    random, study = np.random.default_rng(0), make_study(ALPHA)
    for _ in range(60):
        lr = 10 ** random.uniform(-4, -1)
        params = alpha_params(random.uniform(0.5, 4.75), random.uniform(), "tanh", lr, random.uniform(0, 0.4))
        add(study, tmp_path, params, [1 - 0.1 * (math.log10(lr) + 3) ** 2])
    before = charts.importances(read_results(study, tmp_path))[0]
    assert sum(before.values()) == pytest.approx(1)
    assert before["model.optimizer.lr"] > 0.5 == max(0.5, *[v for k, v in before.items() if k != "model.optimizer.lr"])
    for values, state in (([math.inf], TrialState.COMPLETE), (None, TrialState.FAIL), ([0.99], TrialState.PRUNED)):
        add(study, tmp_path, alpha_params(4, 0.5, "sigmoid", 1e-2, 0.1), values, state)
    assert charts.importances(read_results(study, tmp_path))[0] == before


def test_each_objective_has_importances_in_its_own_direction(tmp_path: Path):
    study = make_study({**ALPHA, "objectives": ["val/top1", "parameters"]})
    random = np.random.default_rng(0)
    for _ in range(60):
        lr, warmup = 10 ** random.uniform(-4, -1), random.uniform(0, 0.4)
        params = alpha_params(random.uniform(0.5, 4.75), random.uniform(), "tanh", lr, warmup)
        # good at one end only: with the wrong direction the other end would be sought, as important there
        add(study, tmp_path, params, [max(0.0, math.log10(lr) + 2), max(0.0, warmup - 0.1)])
    score, cost = charts.importances(read_results(study, tmp_path))
    assert max(score, key=score.__getitem__) == "model.optimizer.lr"
    assert max(cost, key=cost.__getitem__) == "model.schedule.warmup"
    assert sum(score.values()) == pytest.approx(1) and sum(cost.values()) == pytest.approx(1)


def test_few_trials_have_no_importance(tmp_path: Path):
    assert charts.importances(read_results(alpha_study(tmp_path, 5), tmp_path)) == []


def test_the_history_shows_values_and_the_best_so_far(tmp_path: Path):
    results = read_results(alpha_study(tmp_path), tmp_path)
    figure = charts.history(results)
    assert figure is not None
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    best = lines["best so far"]
    expected = np.maximum.accumulate([trial.values[0] for trial in results.finished])
    np.testing.assert_array_equal(best.get_ydata()[:-1], expected)
    np.testing.assert_array_equal(best.get_xdata(), [*(trial.number for trial in results.finished), 39])
    shown = sum(len(line.get_xdata()) for label, line in lines.items() if str(label).startswith("finished"))
    assert shown == len(results.finished)
    assert list(lines["failed"].get_xdata()) == [7, 12]


def test_learning_curves_are_those_of_the_files_or_of_the_reports(tmp_path: Path):
    results = read_results(alpha_study(tmp_path, 3), tmp_path)
    (tmp_path / "trials/00001/metrics.csv").unlink()  # it ran on another machine
    figure = charts.learning_curves(results)
    assert figure is not None
    losses, scores = (figure.axes[at].lines for at in (0, 1))
    for trial, line in zip(results.trials, scores, strict=True):
        assert list(line.get_xdata()) == list(trial.intermediate_values)
        np.testing.assert_allclose(line.get_ydata(), list(trial.intermediate_values.values()), rtol=1e-12)
    assert [len(line.get_xdata()) for line in losses] == [20, 0, 20]


def test_half_a_row_of_a_killed_run_is_passed_over(tmp_path: Path):
    study = alpha_study(tmp_path, 2)
    with (tmp_path / "trials/00001/metrics.csv").open("a") as file:
        file.write("420,21,0.001,0.5,0.9e-")
    results = read_results(study, tmp_path)
    assert results.curve(results.trials[1], "val/top1").steps == [20.0 * epoch for epoch in range(1, 21)]
    assert "Learning curves" in written(study, tmp_path).headings


def test_points_of_the_contour_are_the_ranges(tmp_path: Path):
    results = read_results(alpha_study(tmp_path), tmp_path)
    figure = landscape.contours(results)
    assert figure is not None
    (points,) = [part for part in figure.axes[0].collections if hasattr(part, "get_sizes") and len(part.get_sizes())]
    expected = [results.settings(trial)["model.network.alpha_range"] for trial in results.finished]
    np.testing.assert_allclose(points.get_offsets(), expected)
    assert figure.axes[0].get_xlabel() == "alpha_range, low end"


def test_a_learning_rate_has_a_logarithmic_axis(tmp_path: Path):
    results = read_results(alpha_study(tmp_path), tmp_path)
    figure = landscape.parallel(results)
    assert figure is not None
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    place = labels.index("lr")
    trials = sorted(results.finished, key=lambda trial: trial.values[0])
    rates = np.log10([results.settings(trial)["model.optimizer.lr"] for trial in trials])
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == len(labels)]
    heights = [line.get_ydata()[place] for line in lines]
    np.testing.assert_allclose(heights, (rates - rates.min()) / np.ptp(rates), atol=1e-9)


def test_the_work_of_a_report_grows_with_the_number_of_trials_and_not_with_its_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Counted: each trial's settings are worked out once, its file is read once, and no two trials are compared."""
    counts: Counter[str] = Counter()

    def counted(owner: object, name: str) -> None:
        call = getattr(owner, name)

        def wrapped(*arguments: object, **options: object) -> object:
            counts[name] += 1
            return call(*arguments, **options)

        monkeypatch.setattr(owner, name, wrapped)

    studies = {make.__name__: make(tmp_path / make.__name__, trials=60) for make in (alpha_study, front_study)}
    counted(Space, "values")
    counted(results, "finished")
    counted(results, "pareto_front")
    counted(csv, "DictReader")
    counted(FrozenTrial, "__eq__")
    for name, study in studies.items():
        write_report(study, tmp_path / name)
    assert counts["values"] <= 2 * 60 and counts["DictReader"] <= 2 * 60
    assert counts["__eq__"] == 0 and counts["finished"] <= 2 * 3 and counts["pareto_front"] == 2


@pytest.mark.parametrize("objectives", [1, 2])
def test_a_front_is_found_by_sorting(objectives: int):
    """Counted: comparisons of values, of points on a front, which is the worst case."""
    counts: Counter[str] = Counter()

    class Value(float):
        def __lt__(self, other: float) -> bool:
            counts["comparisons"] += 1
            return float(self) < float(other)

        def __le__(self, other: float) -> bool:
            counts["comparisons"] += 1
            return float(self) <= float(other)

    number = 1024
    order = np.random.default_rng(0).permutation(number)
    points = [(Value(place), Value(-place))[:objectives] for place in order]
    assert len(pareto_front(points)) == (1 if objectives == 1 else number)
    assert counts["comparisons"] < 3 * number * math.log2(number)


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_a_front_is_what_no_other_dominates(objectives: int):
    random = np.random.default_rng(objectives)
    points = [tuple(map(float, random.integers(0, 5, objectives))) for _ in range(200)]
    expected = {
        one
        for one in points
        if not any(other != one and all(a <= b for a, b in zip(other, one, strict=True)) for other in points)
    }
    assert pareto_front(points) == expected
