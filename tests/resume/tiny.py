"""A task so small that a whole run takes a tenth of a second, with all that makes a resume exact.

It draws random numbers (dropout), keeps batch statistics, is averaged, scheduled, scored and logged.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from nala_platform.tasks.base import Step, Task
from torch import nn
from torch.utils.data import Dataset

from nala_platform.callbacks.checkpoint import RunCheckpoint
from nala_platform.callbacks.csv_log import CSVLog
from nala_platform.callbacks.ema import EMA
from nala_platform.callbacks.resume import ExactResume
from nala_platform.callbacks.stop import StopSignals
from nala_platform.data.base import DataModule
from nala_platform.metrics import ClassificationScores
from nala_platform.optim import WarmupCosine
from nala_platform.resumption import newest
from nala_platform.runs.checkpoint_file import CheckpointFile
from nala_platform.verify import differences


class Points(Dataset):
    """Sample i is a fixed point; its augmentation depends on the draw."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, draw) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(draw.index + 1000 * draw.epoch)
        point = torch.randn(6, generator=torch.Generator().manual_seed(draw.index))
        noise = 0.1 * torch.randn(6, generator=generator)
        return {"x": point + noise, "target": int(point[:3].argmax()), "name": f"{draw.epoch}:{draw.index}"}


class TinyData(DataModule):
    def __init__(self, size: int = 24, batch_size: int = 4) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=4, predict_batch_size=4, num_workers=0, seed=0)
        self.size = size

    def items(self, split):
        return Points(self.size if split == "train" else 8)

    def protocol(self):
        return {}

    def baselines(self):
        return {}


class TinyTask(Task):
    def __init__(self, network: nn.Module | None = None, optimizer=None, schedule=None) -> None:
        network = network or nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 3)
        )
        super().__init__(
            network=network,
            optimizer=optimizer or (lambda groups: torch.optim.AdamW(groups, lr=0.05)),
            schedule=schedule or (lambda made, steps: WarmupCosine(made, steps, warmup=1)),
            scores=ClassificationScores(3),
        )
        self.names: list[list[str]] = []

    def step(self, batch: dict[str, Any]) -> Step:
        if self.training:
            self.names.append(batch["name"])
        logits = self.network(batch["x"].to(next(self.network.parameters()).dtype))
        return Step(nn.functional.cross_entropy(logits, batch["target"]), logits, batch["target"], len(logits))

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {}


class Killed(BaseException):
    """Stands for SIGKILL: nothing is saved on the way out."""


class Interrupt(Callback):
    """Sends a signal to this process, or kills it, the n-th time that a hook is called outside the sanity check.

    Args:
        hook: name of a callback's hook.
        time: n, from 1 on.
        number: of the signal.
    """

    def __init__(self, hook: str, time: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.hook, self.time, self.number, self.count = hook, time, number, 0
        setattr(self, hook, self._called)

    def _called(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self.count += not trainer.sanity_checking
        if self.count == self.time and not trainer.sanity_checking:
            if self.number == signal.SIGKILL:
                raise Killed
            os.kill(os.getpid(), self.number)


def fit(
    folder: Path,
    *callbacks: Callback,
    make: Callable[[], TinyTask] = TinyTask,
    data: DataModule | None = None,
    decay: float | None = 0.9,
    checkpoint: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[TinyTask, Trainer]:
    """Train in ``folder``, from its newest checkpoint if it has one, and test the best."""
    folder.mkdir(exist_ok=True)
    seed_everything(0, verbose=False)
    model, data, stop = make(), data or TinyData(), StopSignals()
    saver = RunCheckpoint("val/loss", "min", **(checkpoint or {}))
    saver.stop = stop
    averages = [] if decay is None else [EMA(decay)]
    trainer = Trainer(
        **{"max_epochs": 2, "log_every_n_steps": 1, "gradient_clip_val": 1.0, **options},
        default_root_dir=folder,
        callbacks=[saver, ExactResume(), *averages, *callbacks],
        logger=[CSVLog(folder)],
        plugins=[CheckpointFile()],
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    with stop.listening():
        trainer.fit(model, data, ckpt_path=newest(folder)[0], weights_only=True)
        trainer.test(model, data, ckpt_path=str(folder / "checkpoints/best.ckpt"), weights_only=True, verbose=False)
    return model, trainer


def assert_equal(one: Path, other: Path) -> None:
    """Two run folders hold the same files, checkpoints equal entry by entry, the rest byte by byte."""
    files = [sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file()) for run in (one, other)]
    assert files[0] == files[1], files
    found = differences(one, other)
    assert found == [], found
    for file in files[0]:
        if file.suffix != ".ckpt":
            assert (one / file).read_bytes() == (other / file).read_bytes(), file
