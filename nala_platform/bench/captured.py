"""A task as ``nala fit`` builds it, with a batch of its data, taken out of the run at its first step."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from nala_platform.optim import parameter_groups

CALLBACK = "nala_platform.bench.captured.Capture"


class Captured(Exception):
    """The run got as far as its first batch.

    Attributes:
        work: what was captured.
    """

    def __init__(self, work: "Work") -> None:
        super().__init__()
        self.work = work


class Work(NamedTuple):
    """A task, one batch on its device, its optimizer, and how the trainer would clip and round."""

    task: Any
    batch: Any
    optimizer: torch.optim.Optimizer
    clip: float | None
    precision: Callable[[], AbstractContextManager[Any]]
    device: torch.device

    def train(self) -> None:
        """One training step on the batch, which is always the same: no loading is timed."""
        self.task.train()
        with self.precision():
            loss = self.task.step(self.batch).loss
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.task.network.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def infer(self) -> None:
        """The forward pass on the same batch, as in evaluation, the loss included."""
        self.task.eval()
        with self.precision():
            self.task.step(self.batch)


class Capture(Callback):
    """Ends the fit before its first step.

    Raises:
        Captured: with all that a step needs.
    """

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Take what is there; the batch lies on the device already."""
        task: Any = pl_module
        batch = {key: value.clone() if isinstance(value, Tensor) else value for key, value in batch.items()}
        optimizer = task.make_optimizer(parameter_groups(task.network))
        plugin = trainer.precision_plugin
        raise Captured(Work(task, batch, optimizer, trainer.gradient_clip_val, plugin.train_step_context, task.device))
