"""A run that is a trial of a sweep tells its worker each score, and hears whether to go on."""

import json
import os
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from nala_platform.errors import PrunedError

# Set by the worker: "<file descriptor of answers>,<of reports>,<metric>"; the first process alone has the descriptors.
VARIABLE = "NALA_SWEEP_REPORT"


class SweepReporter(Callback):
    """After each validation, writes ``{"step", "epoch", "value"}`` as a line of JSON and waits for the answer.

    The answer is the worker's, and goes from the first process to all, so they stop at the same step.

    Args:
        answers: file descriptor to read from.
        reports: file descriptor to write to.
        metric: logged name to report; a run that does not log it reports nothing.

    Raises:
        PrunedError: the answer was to stop, or there is nobody any more to answer.
    """

    def __init__(self, answers: int, reports: int, metric: str) -> None:
        super().__init__()
        self.answers, self.reports, self.metric = answers, reports, metric

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report and ask."""
        if trainer.state.fn != "fit" or trainer.sanity_checking or self.metric not in trainer.callback_metrics:
            return
        stops = self._ask(trainer) if trainer.is_global_zero else False
        if trainer.strategy.broadcast(stops):
            raise PrunedError(f"pruned at step {trainer.global_step}")

    def _ask(self, trainer: Trainer) -> bool:
        value = float(trainer.callback_metrics[self.metric])
        said: dict[str, Any] = {"step": trainer.global_step, "epoch": trainer.current_epoch, "value": value}
        os.write(self.reports, json.dumps(said).encode() + b"\n")
        return os.read(self.answers, 64) != b"go on\n"


def sweep_reporter() -> list[Callback]:
    """The reporter that the environment asks for, or none."""
    if VARIABLE not in os.environ:
        return []
    answers, reports, metric = os.environ[VARIABLE].split(",", 2)
    return [SweepReporter(int(answers), int(reports), metric)]
