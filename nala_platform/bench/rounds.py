"""A fit that stops every few steps to let bare PyTorch loops do as many on the same network and data."""

import copy
import hashlib
import io
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nala_platform.optim import parameter_groups
from nala_platform.runs import write_atomic

ROUND = 10  # steps: as many as base.yaml has between two rows of the log, so each round holds one
CALLBACK = "nala_platform.bench.rounds.Loops"
_REPEATS = 5  # checkpoints


class Finished(Exception):
    """Enough is measured.

    Attributes:
        rounds: seconds of a step, by loop, one a round.
        checkpoint: figures of a checkpoint: what, value, unit.
    """

    def __init__(self, rounds: dict[str, list[float]], checkpoint: list[tuple[str, float, str]]) -> None:
        super().__init__()
        self.rounds, self.checkpoint = rounds, checkpoint


class Loops(Callback):
    """Times rounds of this fit and of bare loops in turns; the first of each warms up and does not count.

    A step of the fit lasts from one batch's start to the next one's, all other callbacks and the log included. Steps
    that begin an epoch are left out, in all loops alike.

    Args:
        rounds: that count.
        clock: ``wall``, or ``cpu``: the processor time of this process, which other programs do not lengthen.

    Raises:
        Finished: all is measured; nothing else ends the fit.
    """

    names: ClassVar[tuple[str, str, str]] = ("bare", "averaged", "fit")

    def __init__(self, rounds: int, clock: Literal["wall", "cpu"] = "wall") -> None:
        super().__init__()
        self.rounds, self.clock = rounds, time.process_time if clock == "cpu" else time.perf_counter
        self._seconds: dict[str, list[float]] = {name: [] for name in self.names}
        self._steps: list[float] = []
        self._last: float | None = None
        self._bare: dict[str, Bare] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Copy the network as it is at the start."""
        others: list[Any] = getattr(trainer, "callbacks")  # noqa: B009 - the checker does not see it
        decay = next((other.decay for other in others if hasattr(other, "decay")), 0.99)
        bare, averaged, _ = self.names
        self._bare = {bare: Bare(trainer, pl_module, None), averaged: Bare(trainer, pl_module, decay)}

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The step in between is none."""
        self._last = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Take the time; after a round, let the others have theirs."""
        if self._last is not None:
            if len(self._steps) == ROUND - 1:
                _wait_for_device()
            self._steps.append(self.clock() - self._last)
        if len(self._steps) == ROUND:
            self._seconds[self.names[-1]].append(sum(self._steps) / ROUND)
            self._steps = []
            for name, loop in self._bare.items():
                self._seconds[name].append(loop.round(self.clock))
            if len(self._seconds[self.names[-1]]) > self.rounds:
                rounds = {name: seconds[1:] for name, seconds in self._seconds.items()}
                raise Finished(rounds, checkpoint_costs(trainer))
        self._last = self.clock()


class Bare:
    """Forward, backward, clip, step: a loop as one would write it, over the task's own loss and the data's own loader.

    Args:
        trainer: of the fit; says the device, the precision and the clipping.
        task: copied.
        decay: of an exponential average of the network, as PyTorch has it; None: none.
    """

    def __init__(self, trainer: Trainer, task: Any, decay: float | None) -> None:
        self.task = copy.deepcopy(task).train()
        self.trainer, self.clip = trainer, trainer.gradient_clip_val
        self.optimizer = self.task.make_optimizer(parameter_groups(self.task.network))
        self.schedule = self.task.make_schedule(self.optimizer, int(trainer.estimated_stepping_batches))
        self.average = (
            AveragedModel(self.task.network, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
            if decay is not None
            else None
        )
        self._batches = self._endless()

    def round(self, clock: Callable[[], float]) -> float:
        """Seconds of a step, the mean of `ROUND`."""
        steps = []
        while len(steps) < ROUND:
            start = clock()
            is_first = self._step()
            if len(steps) == ROUND - 1:
                _wait_for_device()
            if not is_first:
                steps.append(clock() - start)
        return sum(steps) / ROUND

    def _step(self) -> bool:
        place, batch = next(self._batches)
        every = self.trainer.accumulate_grad_batches
        device = self.trainer.strategy.root_device
        batch = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}
        with self.trainer.precision_plugin.train_step_context():
            loss = self.task.step(batch).loss / every
        loss.backward()
        if (place + 1) % every == 0:
            if self.clip:
                nn.utils.clip_grad_norm_(self.task.network.parameters(), self.clip)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            if self.average is not None:
                self.average.update_parameters(self.task.network)
        return place == 0

    def _endless(self) -> Iterator[tuple[int, Any]]:
        loader = getattr(self.trainer, "datamodule").train_dataloader()  # noqa: B009 - Lightning adds it at the fit
        epoch = 0
        while True:
            loader.sampler.set_epoch(epoch)
            yield from enumerate(loader)
            epoch += 1


def checkpoint_costs(trainer: Trainer) -> list[tuple[str, float, str]]:
    """Size and milliseconds of a checkpoint as the run writes it, and of the parts alone; medians."""
    with tempfile.TemporaryDirectory(dir=trainer.default_root_dir) as folder:
        path = Path(folder) / "some.ckpt"
        whole = _milliseconds(lambda: trainer.save_checkpoint(path))
        content = path.read_bytes()
        state = torch.load(path, weights_only=True)
        return [
            ("checkpoint: size", len(content) / 1e6, "MB"),
            ("checkpoint: whole", whole, "ms"),
            ("checkpoint: serialise alone", _milliseconds(lambda: torch.save(state, io.BytesIO())), "ms"),
            ("checkpoint: write and fsync alone", _milliseconds(lambda: write_atomic(path, content)), "ms"),
            ("checkpoint: SHA-256 alone", _milliseconds(lambda: hashlib.sha256(content).digest()), "ms"),
        ]


def _milliseconds(action: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        action()
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)[_REPEATS // 2]


def _wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
