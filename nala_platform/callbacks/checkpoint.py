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
    """Saves ``last.ckpt`` after each validation, each epoch and at the end; ``best.ckpt`` on a better score.

    ``last.ckpt`` is the latest state, whatever the metric did. Beside the best checkpoint stands
    ``model.safetensors``: the network's weights under its own names, which timm and others load. A run that ends
    without one score, since it had no validation or every score was NaN, takes its last state for the best.

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
        self._saved_step = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Know the folder."""
        self.folder = Path(trainer.default_root_dir) / CHECKPOINTS

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
        """Save the latest state, unless a validation has just done so."""
        self._save_unsaved(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save what came after the last validation; with no score at all, the last state is the best there is."""
        self._save_unsaved(trainer, best=self.best_score is None)

    def _save_unsaved(self, trainer: Trainer, best: bool = False) -> None:
        unsaved = trainer.global_step != self._saved_step
        if (unsaved or best) and trainer.global_step > 0 and not getattr(trainer, "fast_dev_run", False):
            self._save(trainer, best)

    def _improved(self, score: float) -> bool:
        if score != score:  # NaN is never best
            return False
        if self.best_score is None:
            return True
        return score > self.best_score if self.mode == "max" else score < self.best_score

    def _save(self, trainer: Trainer, best: bool) -> None:
        last = self.folder / LAST
        trainer.save_checkpoint(last)
        self._saved_step = trainer.global_step
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
