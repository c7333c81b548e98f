"""Checkpoints of a run: the best, the latest, and the best model's weights alone."""

from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from safetensors.torch import save

from nala_platform.errors import UserError
from nala_platform.runs import BEST, CHECKPOINTS, LAST, WEIGHTS, write_atomic


class RunCheckpoint(Checkpoint):
    """Saves after each validation: ``last.ckpt`` always, ``best.ckpt`` when the monitored metric improved.

    ``last.ckpt`` is the latest state, whatever the metric did. Beside the best checkpoint stands
    ``model.safetensors``: the network's weights under its own names, which timm and others load. A run without
    validation saves ``last.ckpt`` at the end of each epoch and takes it for the best.

    Args:
        monitor: logged name that decides which is best, such as ``val/miou``.
        mode: whether a ``max`` or a ``min`` is best.

    Raises:
        UserError: the monitored name is not among those logged in validation.
    """

    def __init__(self, monitor: str = "val/loss", mode: Literal["min", "max"] = "min") -> None:
        super().__init__()
        self.monitor = monitor
        self.mode = mode
        self.best_score: float | None = None
        self.best_epoch: int | None = None
        self.folder = Path()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Fix the folder, the same on every process."""
        self.folder = Path(trainer.strategy.broadcast(trainer.default_root_dir)) / CHECKPOINTS

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the latest state, and the best if this is it."""
        if trainer.state.fn != "fit" or getattr(trainer, "fast_dev_run", False):
            return
        metrics = trainer.callback_metrics
        if self.monitor not in metrics:
            known = ", ".join(sorted(name for name in metrics if name.startswith("val/")))
            raise UserError(f"checkpoint.monitor {self.monitor!r} is not logged; validation logs {known}")
        if trainer.sanity_checking:  # a wrong name is said before the first epoch, and that is all
            return
        score = float(metrics[self.monitor])
        improved = self._improved(score)
        if improved:
            self.best_score, self.best_epoch = score, trainer.current_epoch
        self._save(trainer, best=improved)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save a run that has no validation."""
        if not trainer.enable_validation and not getattr(trainer, "fast_dev_run", False):
            self.best_epoch = trainer.current_epoch
            self._save(trainer, best=True)

    def _improved(self, score: float) -> bool:
        if score != score:  # NaN is never best
            return False
        if self.best_score is None:
            return True
        return score > self.best_score if self.mode == "max" else score < self.best_score

    def _save(self, trainer: Trainer, best: bool) -> None:
        last = self.folder / LAST
        trainer.save_checkpoint(last)
        if best and trainer.is_global_zero:
            write_atomic(self.folder / BEST, last.read_bytes())
            self._export(last)
        trainer.strategy.barrier()

    def _export(self, checkpoint: Path) -> None:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
        prefix = "network."
        weights = {
            name.removeprefix(prefix): value.clone().contiguous()
            for name, value in state.items()
            if name.startswith(prefix)
        }
        write_atomic(self.folder / WEIGHTS, save(weights))

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on judging: the best score so far and its epoch."""
        return {"best_score": self.best_score, "best_epoch": self.best_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the best score so far."""
        self.best_score, self.best_epoch = state_dict["best_score"], state_dict["best_epoch"]
