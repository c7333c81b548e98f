"""A picture of how a run went."""

import csv
from pathlib import Path
from statistics import median

from lightning.pytorch import Callback, LightningModule, Trainer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nala_platform.runs import METRICS, save_figure

Series = tuple[list[float], list[float]]


class Curves(Callback):
    """Writes ``curves.png`` at the end of a fit: loss, validation metrics and learning rate against the step.

    Drawn from ``metrics.csv``, so it shows what is on record, a resumed run's earlier part too.

    Args:
        metrics: logged validation metrics; the first is the one to judge by, those of about its size share its panel.
    """

    def __init__(self, metrics: list[str]) -> None:
        super().__init__()
        self.metrics = metrics

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw, on the first process."""
        table = Path(trainer.default_root_dir) / METRICS
        if trainer.is_global_zero and table.is_file():
            draw_curves(table, table.with_name("curves.png"), self.metrics)


def draw_curves(table: Path, picture: Path, metrics: list[str]) -> None:
    """Draw three panels from the CSV file ``table`` into the PNG file ``picture``."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    loss, score, rate = figure.subplots(1, 3)
    _panel(loss, rows, {"train/loss_step": "train", "val/loss": "validation"}, "loss")
    _panel(score, rows, {name: name for name in _of_one_size(rows, metrics)}, "validation score")
    _panel(rate, rows, {"lr": "learning rate"}, "learning rate")
    save_figure(figure, picture)


def _of_one_size(rows: list[dict[str, str]], metrics: list[str]) -> list[str]:
    """The first metric and those that one axis can show beside it: decibels and shares cannot stand together."""
    typical = {name: abs(median(values)) for name in metrics if (values := _series(rows, name)[1])}
    if not metrics or metrics[0] not in typical:
        return list(typical)
    return [name for name, size in typical.items() if size <= 4 * typical[metrics[0]] <= 16 * size]


def _panel(axes: Axes, rows: list[dict[str, str]], columns: dict[str, str], title: str) -> None:
    for column, label in columns.items():
        steps, values = _series(rows, column)
        if steps:
            # a validation has few points, so they are marked; a training curve is dense
            axes.plot(steps, values, label=label, marker="o" if len(steps) < 60 else "", markersize=3, linewidth=1.3)
    axes.set_title(title)
    axes.set_xlabel("optimizer step")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines and len(columns) > 1:
        axes.legend(frameon=False)


def _series(rows: list[dict[str, str]], column: str) -> Series:
    points = [(float(row["step"]), float(row[column])) for row in rows if row.get(column)]
    return [step for step, _ in points], [value for _, value in points]
