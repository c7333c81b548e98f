"""Checkpoints of a run: when one is due, which are kept, and the best model's weights alone."""

import sys
import time
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from safetensors.torch import save

from nala_platform.callbacks.stop import StopSignals
from nala_platform.errors import StoppedError, UserError, near
from nala_platform.paths import quoted
from nala_platform.runs import BEST, CHECKPOINTS, LAST, PREVIOUS, STAGED, WEIGHTS, write_atomic
from nala_platform.runs.files import give_name


class RunCheckpoint(Checkpoint):
    """Keeps ``last.ckpt``, ``previous.ckpt`` (the last before it) and ``best.ckpt`` of a run.

    A checkpoint is due after each validation and epoch, after ``every_n_steps`` steps, after ``every_minutes``
    minutes, and when a signal asks the run to stop. It is written between two batches, before the next one begins:
    there everything that belongs to a batch is done (average, schedule, log), and a run that goes on from it is the run
    that was never stopped. Where gradients are being accumulated they are part of it; several processes, and what is
    due by the clock alone, wait for the step. A signal that comes in a validation of one process is heeded there and
    then, and the validation runs as a whole after the resume; one that comes in the test ends it, and the test alone
    is run again.

    ``last.ckpt`` is the latest state, whatever the metric did. Beside the best checkpoint stands
    ``model.safetensors``: the network's weights under its own names, which timm and others load. A run that ends
    without one score, since it had no validation or every score was NaN, takes its last state for the best.

    Args:
        monitor: logged name that decides which is best, such as ``val/miou``.
        mode: whether a ``max`` or a ``min`` is best.
        every_n_steps: optimizer steps between two checkpoints; ``None``: validations and epochs alone decide.
        every_minutes: minutes between two checkpoints; ``None``: likewise.
        keep_best: how many of the best are kept; from two on each also as ``best-step<N>.ckpt``.

    Raises:
        UserError: the monitored name is not among those logged in validation.
        StoppedError: a signal came; the state is saved.
        StorageError: a checkpoint cannot be written.
    """

    def __init__(
        self,
        monitor: str = "val/loss",
        mode: Literal["min", "max"] = "min",
        every_n_steps: int | None = None,
        every_minutes: float | None = 10.0,
        keep_best: int = 1,
    ) -> None:
        super().__init__()
        for key, value in (
            ("every_n_steps", every_n_steps),
            ("every_minutes", every_minutes),
            ("keep_best", keep_best),
        ):
            if value is not None and value <= 0:
                raise UserError(f"checkpoint.{key} is {value}: it must be above 0")
        self.monitor, self.mode = monitor, mode
        self.every_n_steps, self.every_minutes, self.keep_best = every_n_steps, every_minutes, keep_best
        self.best: list[tuple[float, int]] = []  # (score, step), the best first
        self.stop: StopSignals | None = None
        self.folder = Path()
        self._is_due = self._is_best = self._is_finished = self._is_judged = False
        self._saved_step, self._saved_at = 0, time.monotonic()
        self._weights: dict[str, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Know the folder."""
        self.folder = Path(trainer.default_root_dir) / CHECKPOINTS

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning has taken the signals, so take them back; they are heeded before the first batch."""
        self._take_signals()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What was just restored needs no saving."""
        self._saved_step, self._saved_at = trainer.global_step, time.monotonic()
        self._take_signals()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the signals back once more."""
        self._take_signals()

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Leave if a signal asked for it: all is saved but the scores."""
        if self.stop is not None and self.stop.received:
            raise StoppedError(
                f"stopped in the test; score the run with: nala fit --resume {self.folder.parent}", self.stop.received
            )

    def _take_signals(self) -> None:
        if self.stop is not None:
            self.stop.install()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Save what is due, and leave if a signal asked for it."""
        if _is_trial(trainer):
            return
        signal, is_due = self._agree(trainer, between_steps=batch_idx % trainer.accumulate_grad_batches == 0)
        if is_due or signal:
            self._save(trainer)
        if signal:
            raise StoppedError(self._farewell(trainer), signal)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Save and leave if a signal asked for it; processes that validate together cannot part here."""
        if trainer.state.fn != "fit" or trainer.world_size > 1 or trainer.sanity_checking or self.stop is None:
            return
        if self.stop.received and not _is_trial(trainer):
            self._save(trainer)
            raise StoppedError(self._farewell(trainer), self.stop.received)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judge: the state is due to be saved, and as the best if this is it."""
        if trainer.state.fn != "fit" or _is_trial(trainer):
            return
        metrics = trainer.callback_metrics
        if self.monitor not in metrics:
            known = sorted(name for name in metrics if name.startswith("val/"))
            meant = near(self.monitor, known).removesuffix(".")
            logged = f"validation logs {', '.join(known)}"
            raise UserError(f"checkpoint.monitor {self.monitor!r} is not logged; {logged}{meant}")
        if trainer.sanity_checking:  # a wrong name is said before the first epoch, and that is all
            return
        self._is_due = True
        self._rank(float(metrics[self.monitor]), trainer.global_step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The state after an epoch is due, once all that belongs to the epoch is done."""
        self._is_due = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save what came after the last checkpoint; with no score at all, the last state is the best there is."""
        if _is_trial(trainer) or trainer.global_step == 0:
            return
        self._is_finished = True
        if not self.best:
            self._is_best = True
            if trainer.is_global_zero:
                print(f"nala: note: {self.choice(trainer)['note']}", file=sys.stderr)
        self._save(trainer)

    def choice(self, trainer: Trainer) -> dict[str, Any]:
        """What chose ``best.ckpt``: ``monitor``, ``mode``, ``score`` and ``step``; a ``note`` instead of a score."""
        rule = {"monitor": self.monitor, "mode": self.mode}
        if self.best:
            score, step = self.best[0]
            return {**rule, "score": score, "step": step}
        if trainer.limit_val_batches == 0:
            why = "--trainer.limit_val_batches is 0"
        elif self._is_judged:
            why = f"{self.monitor} was NaN in each validation"
        else:
            why = "the run ended before its first one; see --trainer.val_check_interval and check_val_every_n_epoch"
        note = f"no validation chose {BEST}, which is the last state: {why}"
        return {**rule, "score": None, "step": trainer.global_step, "note": note}

    def _agree(self, trainer: Trainer, between_steps: bool) -> tuple[int, bool]:
        """The signal and whether a checkpoint is due: of any process, so that all do the same."""
        signal = self.stop.received if self.stop is not None else 0
        if not between_steps:  # all know of a validation; to ask for more would cost a word with each other per batch
            return signal if trainer.world_size == 1 else 0, self._is_due
        steps, seconds = trainer.global_step - self._saved_step, time.monotonic() - self._saved_at
        is_due = self._is_due or bool(self.every_n_steps and steps >= self.every_n_steps)
        is_late = bool(self.every_minutes and seconds >= 60 * self.every_minutes and steps)
        if trainer.world_size > 1:
            word = _largest(trainer, 2 * signal + is_late)
            signal, is_late = word // 2, bool(word % 2)
        return signal, is_due or is_late

    def _rank(self, score: float, step: int) -> None:
        self._is_judged = True
        if score != score:  # NaN is never best
            return
        # Of equal scores the earlier stays ahead. A step has one place, its best: several validations may fall in it.
        ranked = sorted([*self.best, (score, step)], key=lambda entry: entry[0], reverse=self.mode == "max")
        steps = [ranked_step for _, ranked_step in ranked]
        ranked = [entry for place, entry in enumerate(ranked) if entry[1] not in steps[:place]][: self.keep_best]
        self._is_best |= ranked != self.best
        self.best = ranked

    def _save(self, trainer: Trainer) -> None:
        """The best first: killed in between, the run goes on from the last before it, and comes here again."""
        new, last = self.folder / STAGED, self.folder / LAST
        trainer.save_checkpoint(new)
        if trainer.is_global_zero:
            if self._is_best:
                self._keep_best(new, trainer.global_step)
            if last.exists():
                give_name(last, self.folder / PREVIOUS)
            give_name(new, last)
            new.unlink()
        self._weights, self._is_best, self._is_due = {}, False, False
        self._saved_step, self._saved_at = trainer.global_step, time.monotonic()
        trainer.strategy.barrier()

    def _keep_best(self, new: Path, step: int) -> None:
        if not self.best or self.best[0][1] == step:
            give_name(new, self.folder / BEST)
            write_atomic(self.folder / WEIGHTS, save(self._weights))
        if self.keep_best > 1:
            give_name(new, self.folder / f"best-step{step}.ckpt")
            kept = {f"best-step{kept}.ckpt" for _, kept in self.best}
            for path in self.folder.glob("best-step*.ckpt"):
                if path.name not in kept:
                    path.unlink()

    def _farewell(self, trainer: Trainer) -> str:
        return f"stopped at step {trainer.global_step}; go on with: nala fit --resume {quoted(self.folder.parent)}"

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Mark the end of a run; keep the network's weights, averaged or not, for ``model.safetensors``."""
        checkpoint.setdefault("nala", {})["note"] = {"finished": self._is_finished}
        prefix = "network."
        self._weights = {
            name.removeprefix(prefix): value.detach().cpu().clone().contiguous()
            for name, value in checkpoint["state_dict"].items()
            if self._is_best and name.startswith(prefix)
        }

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on judging: which were the best so far, and by which rule."""
        return {"best": [list(entry) for entry in self.best], "monitor": self.monitor, "mode": self.mode}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the best so far; scores of another metric are not compared."""
        if (state_dict["monitor"], state_dict["mode"]) == (self.monitor, self.mode):
            self.best = [(score, step) for score, step in state_dict["best"]]


def _is_trial(trainer: Trainer) -> bool:
    return bool(getattr(trainer, "fast_dev_run", False))


def _largest(trainer: Trainer, value: int) -> int:
    word = torch.tensor(value, device=trainer.strategy.root_device)
    torch.distributed.all_reduce(word, op=torch.distributed.ReduceOp.MAX)
    return int(word)
