"""A run that is a trial of a sweep tells its worker each score, and hears whether to go on."""

import contextlib
import json
import math
import os
import select
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer

from nala_platform.errors import PrunedError, StorageError

# Set by the worker: "<file descriptor of answers>,<of reports>,<metric>"; the first process alone has the descriptors.
VARIABLE = "NALA_SWEEP_REPORT"
# Seconds; a worker that waits for a lock or a database gives up before (`nala_platform.sweeps.waiting`, `.patience`).
PATIENCE = 900.0
Answer = Literal["go on", "stop", "none"]


class SweepReporter(Callback):
    """After each validation, writes a line of JSON and waits for the answer; at the end of the test, writes another.

    The line holds ``step``, ``epoch`` and ``value``; ``total_steps`` of the run and ``steps_per_epoch``, in optimizer
    steps as ``step`` is; and ``warmup_steps`` where the schedule knows them. The answer is the worker's, and goes from
    the first process to all, so they stop at the same step. The last line is ``{"done": true}``: what the process does
    after it is to end.

    Args:
        answers: file descriptor to read from.
        reports: file descriptor to write to.
        metric: logged name to report; a run that does not log it reports nothing.

    Raises:
        PrunedError: the answer was to stop, or there is nobody any more to answer.
        StorageError: the worker is there, and has not answered for `PATIENCE` seconds.
    """

    def __init__(self, answers: int, reports: int, metric: str) -> None:
        super().__init__()
        self.answers, self.reports, self.metric = answers, reports, metric

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report and ask."""
        if trainer.state.fn != "fit" or trainer.sanity_checking or self.metric not in trainer.callback_metrics:
            return
        answer: Answer = self._ask(trainer) if trainer.is_global_zero else "go on"
        answer = trainer.strategy.broadcast(answer)
        if answer == "none":
            raise StorageError(
                f"the sweep's worker has not answered for {PATIENCE:.0f} s at step {trainer.global_step}"
            )
        if answer == "stop":
            raise PrunedError(f"pruned at step {trainer.global_step}")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Say that all is written: the test comes last."""
        if stage == "test" and trainer.is_global_zero:
            with contextlib.suppress(BrokenPipeError):  # nobody listens any more, and the work is done
                self._write({"done": True})

    def _ask(self, trainer: Trainer) -> Answer:
        value = float(trainer.callback_metrics[self.metric])
        said = {"step": trainer.global_step, "epoch": trainer.current_epoch, "value": value, **_lengths(trainer)}
        self._write(said)
        if not select.select([self.answers], [], [], PATIENCE)[0]:
            return "none"
        return "go on" if os.read(self.answers, 64) == b"go on\n" else "stop"

    def _write(self, said: dict[str, Any]) -> None:
        os.write(self.reports, json.dumps(said).encode() + b"\n")


def _lengths(trainer: Trainer) -> dict[str, int]:
    """How long the run, an epoch and the warm-up are, in optimizer steps; what nobody knows is left out."""
    found = {
        "total_steps": trainer.estimated_stepping_batches,
        "steps_per_epoch": trainer.num_training_batches / trainer.accumulate_grad_batches,
    }
    lengths = {name: math.ceil(value) for name, value in found.items() if 0 < value < math.inf}
    # those of torch have no warm-up, or none that can be asked for
    warmups = [getattr(each.scheduler, "warmup_steps", None) for each in trainer.lr_scheduler_configs]
    return lengths | {"warmup_steps": max((value for value in warmups if isinstance(value, int)), default=0)}


def sweep_reporter() -> list[Callback]:
    """The reporter that the environment asks for, or none."""
    if VARIABLE not in os.environ:
        return []
    answers, reports, metric = os.environ[VARIABLE].split(",", 2)
    return [SweepReporter(int(answers), int(reports), metric)]
