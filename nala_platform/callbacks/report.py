"""The result of a run: a file for machines, a table for the person at the terminal."""

import math
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.table import Table

from nala_platform.callbacks.bad_samples import BadSamples
from nala_platform.callbacks.costs import Costs
from nala_platform.runs import SUMMARY, versions, write_json


class Report(Callback):
    """Writes ``summary.json`` after a validation or test run and prints the result beside the trivial baselines.

    The file states the metrics, the protocol that they were computed with (as the data module tells it), classes that
    did not occur, baselines, seed, command, versions, wall time, the parameters, the costs and the checkpoint scored.

    Args:
        metrics: names without their split, the first being the one to judge by, such as ``["miou", "pixel_accuracy"]``.
        seed: of the run.
        costs: measures them.
    """

    def __init__(self, metrics: list[str], seed: int, costs: Costs) -> None:
        super().__init__()
        self.metrics, self.seed, self.costs = metrics, seed, costs
        self._start = time.monotonic()
        self._fit: dict[str, Any] = {}

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep what the fit reached, for the summary after its test."""
        self._fit = {"epochs": trainer.current_epoch, "steps": trainer.global_step}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report a validation that stands alone."""
        if trainer.state.fn == "validate":
            self._report(trainer, pl_module, "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the test."""
        self._report(trainer, pl_module, "test")

    def _report(self, trainer: Trainer, pl_module: LightningModule, split: str) -> None:
        if not trainer.is_global_zero:
            return
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        data: Any = getattr(trainer, "datamodule", None)
        baselines = data.baselines() if split == "test" else {}
        scores = getattr(pl_module, "scores")[split]  # noqa: B009 - a Task's, not every LightningModule's
        folder = Path(trainer.default_root_dir)
        summary = {
            "metrics": metrics,
            "absent_classes": _absent(metrics),
            "protocol": data.protocol() | {"scores": getattr(scores, "protocol", type(scores).__name__)},
            "baselines": baselines,
            "parameters": sum(p.numel() for p in pl_module.parameters()),
            "checkpoint": _within(trainer.ckpt_path, folder),
            **self._fit,
            **self.costs.found(),
            "bad_samples": next((one.found() for one in _callbacks(trainer) if isinstance(one, BadSamples)), None),
            "seed": self.seed,
            "command": shlex.join(["nala", *sys.argv[1:]]),
            "wall_time_s": round(time.monotonic() - self._start, 1),
            "processes": trainer.world_size,
            "versions": versions(),
        }
        write_json(folder / SUMMARY, summary)
        self._print(metrics, baselines, split, folder)

    def _print(
        self, metrics: dict[str, float], baselines: dict[str, dict[str, float]], split: str, folder: Path
    ) -> None:
        shown = [name for name in self.metrics if f"{split}/{name}" in metrics]
        table = Table(title=f"{split} split", title_justify="left")
        table.add_column("")
        for name in shown:
            table.add_column(name, justify="right")
        table.add_row("this run", *(_with_error(metrics, f"{split}/{name}") for name in shown), style="bold")
        for baseline, values in baselines.items():
            table.add_row(baseline, *(_number(values.get(name)) for name in shown))
        console = Console(width=None if sys.stdout.isatty() else 120)
        console.print(table)
        for name in _absent(metrics):
            console.print(f"class {name} occurs neither in truth nor in prediction: it has no IoU and is in no mean")
        console.print(f"run folder: {folder}", soft_wrap=True, highlight=False)


def _callbacks(trainer: Trainer) -> list[Callback]:
    return getattr(trainer, "callbacks")  # noqa: B009 - not in the Trainer's type


def _absent(metrics: dict[str, float]) -> list[str]:
    return [name.split("/iou/", 1)[1] for name, value in metrics.items() if "/iou/" in name and math.isnan(value)]


def _within(checkpoint: str | Path | None, folder: Path) -> str | None:
    """The scored file, relative to the run folder when it is in there: a folder that is moved stays right."""
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _with_error(metrics: dict[str, float], name: str) -> str:
    error = metrics.get(f"{name}_stderr")
    return _number(metrics[name]) + ("" if error is None else f" ± {error:.4f}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
