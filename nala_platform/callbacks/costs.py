"""What a run costs: time of a step, memory, arithmetic."""

import resource
import sys
import time
from collections import deque
from statistics import median
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

_KEPT = 1000  # steps whose times the median is over: the latest


class Costs(Callback):
    """Measures while a run goes on.

    ``seconds_per_step``: median time from one training batch to the next, loading and logging included, of this process
    of the run. ``peak_memory_bytes``: the most that the first process held, on its GPU as the allocator counts, else
    resident as the system does. ``gmacs``: multiply-adds of one test sample's forward pass in 1e9, as torch's counter
    knows them: matrix products and convolutions.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seconds: deque[float] = deque(maxlen=_KEPT)
        self._last: float | None = None
        self._gmacs: float | None = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Take the time."""
        now = time.perf_counter()
        if self._last is not None:
            self._seconds.append(now - self._last)
        self._last = now

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A validation is no part of a step."""
        self._last = None

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Count the arithmetic of the first batch."""
        samples = next((len(value) for value in batch.values() if isinstance(value, Tensor) and value.ndim), 0)
        step: Any = getattr(pl_module, "step", None)  # a Task's, not every LightningModule's
        if batch_idx > 0 or not samples or step is None:
            return
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            step(batch)
        self._gmacs = counter.get_total_flops() / 2e9 / samples

    def found(self) -> dict[str, float]:
        """What has been measured."""
        costs: dict[str, float] = {"peak_memory_bytes": _peak_memory()}
        if self._seconds:
            costs["seconds_per_step"] = median(self._seconds)
        if self._gmacs is not None:
            costs["gmacs"] = self._gmacs
        return costs


def _peak_memory() -> int:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
