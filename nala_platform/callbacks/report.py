"""The result of a run: a file for machines, a table for the person at the terminal."""

import hashlib
import math
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.table import Table

from nala_platform import paths
from nala_platform.callbacks.bad_samples import BadSamples
from nala_platform.callbacks.checkpoint import RunCheckpoint
from nala_platform.callbacks.costs import Costs
from nala_platform.runs import CHECKPOINTS, LAST, SUMMARY, versions, write_json

NAMED = 200  # classes whose names stand in a summary


class Report(Callback):
    """Writes ``summary.json`` after a validation or test run and prints the result beside the trivial baselines.

    The file states the metrics, the protocol that they were computed with (as data, task and scores tell it, with the
    labels' names, and how much of the split was scored), classes that did not occur, baselines, bad samples, seed,
    command, versions, wall time, the parameters, the costs and the checkpoint scored.

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
        """Keep what the fit reached, for the summary after its test; write it now where no test will follow."""
        self._fit = {"epochs": trainer.current_epoch, "steps": trainer.global_step}
        for one in _callbacks(trainer):
            if isinstance(one, RunCheckpoint):
                self._fit["best"] = one.choice(trainer)
        is_trial = bool(getattr(trainer, "fast_dev_run", False))
        # a run that was finished before has validated nothing now, and has its summary
        if trainer.limit_test_batches == 0 and trainer.callback_metrics and not is_trial:
            self._report(trainer, pl_module, None)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report a validation that stands alone."""
        if trainer.state.fn == "validate":
            self._report(trainer, pl_module, "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the test."""
        self._report(trainer, pl_module, "test")

    def _report(self, trainer: Trainer, pl_module: LightningModule, split: str | None) -> None:
        """Write and print; without a split, what is known after a fit: the scores of its last validation."""
        if not trainer.is_global_zero:
            return
        note = {} if split else {"note": "the test split was not scored: --trainer.limit_test_batches is 0"}
        checkpoint = trainer.ckpt_path if split else Path(trainer.default_root_dir) / CHECKPOINTS / LAST
        split = split or "val"
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        data: Any = getattr(trainer, "datamodule", None)
        baselines = data.baselines() if split == "test" else {}
        scores = getattr(pl_module, "scores")[split]  # noqa: B009 - a Task's, not every LightningModule's
        folder = Path(trainer.default_root_dir)
        summary = {
            **note,
            "metrics": metrics,
            "absent_classes": _absent(metrics),
            "protocol": _protocol(trainer, pl_module, data, split),
            "baselines": baselines,
            "parameters": sum(p.numel() for p in pl_module.parameters()),
            "checkpoint": _within(checkpoint, folder),
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
        shown = [name for name in self.metrics if f"{split}/{name}" in metrics]
        console = Console(width=None if sys.stdout.isatty() else 120)
        console.print(_table(metrics, baselines, split, shown, getattr(scores, "sets", ())))
        if absent := _absent(metrics):
            few = ", ".join(absent[:5]) + (", …" if len(absent) > 5 else "")
            console.print(f"{len(absent)} classes occur neither in truth nor in prediction and are in no mean: {few}")
        for text in note.values():
            console.print(text, soft_wrap=True, highlight=False)
        console.print(f"run folder: {paths.shown(folder)}", soft_wrap=True, highlight=False)


def _table(
    metrics: dict[str, float],
    baselines: dict[str, dict[str, float]],
    split: str,
    shown: list[str],
    sets: tuple[str, ...],
) -> Table:
    """A row this run and each baseline; where the split is several test sets, for each of them."""
    table = Table(title=f"{split} split", title_justify="left")
    table.add_column("")
    for name in shown:
        table.add_column(name, justify="right")
    for part in sets or ("",):
        place, label = (f"{part}/", f"{part}: ") if part else ("", "")
        ours = [_with_error(metrics, f"{split}/{place}{name}") for name in shown]
        table.add_row(f"{label}this run", *ours, style="bold")
        for baseline, values in baselines.items():
            table.add_row(f"{label}{baseline}", *(_number(values.get(f"{place}{name}")) for name in shown))
    return table


def _protocol(trainer: Trainer, task: Any, data: Any, split: str) -> dict[str, Any]:
    """What the scores mean: everything that has to be the same for two of them to be compared."""
    scores = task.scores[split]
    found = {**data.protocol(), **task.protocol(), "scores": getattr(scores, "protocol", type(scores).__name__)}
    names = getattr(data, "class_names", None)
    if names is not None:
        found["label names"] = list(names) if len(names) <= NAMED else _digest(names)
    loader: Any = data.test_dataloader() if split == "test" else data.val_dataloader()
    batches = trainer.num_test_batches if split == "test" else trainer.num_val_batches
    found["items"] = len(loader.dataset)
    count = batches[0] if batches else 0
    found["scored"] = "all" if count == len(loader) else f"{count} of {len(loader)} batches of each process"
    return found


def _digest(names: tuple[str, ...]) -> str:
    value = hashlib.sha256("\n".join(names).encode()).hexdigest()
    return f"{len(names)}: {names[0]!r}, {names[1]!r} … {names[-1]!r}; sha256 of all, a line each: {value}"


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
    return _number(metrics.get(name)) + ("" if error is None else f" ± {error:.4f}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
