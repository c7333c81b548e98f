"""Going on exactly where a run was stopped.

Order and augmentation of the data are functions of (seed, epoch, sample), so the whole state of a run beside its
tensors is: its position, the random generators of each process, and how far its log has come. This callback brings
them into a checkpoint and back.
"""

import random
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from nala_platform.callbacks.csv_log import CSVLog
from nala_platform.errors import UserError

FORMAT = 1
RESETS = ("lr", "scheduler", "optimizer", "data")


class Position(NamedTuple):
    """Where a run stands: ``batch`` batches of ``epoch`` are done; ``validating``: and their validation is not."""

    epoch: int
    batch: int
    validating: bool = False


class ExactResume(Callback):
    """Saves and restores what Lightning does not, or not exactly.

    Lightning counts batches and epochs in several places, some of which are behind at one hook and ahead at another; a
    checkpoint here holds them as they are between two batches (`Position`), whenever it was written.

    Args:
        resets: what begins anew when a checkpoint is loaded: ``lr`` (the configured rate instead of the stored one, at
            the same point of the schedule), ``scheduler`` (a schedule over the steps that are left, warm-up included),
            ``optimizer`` (no momentum; all its options as configured), ``data`` (the interrupted epoch starts again).
        is_finished: the training that is loaded had come to its end, by a limit or by a callback's wish.
    """

    def __init__(self, resets: tuple[str, ...] = (), is_finished: bool = False) -> None:
        super().__init__()
        self.resets, self.is_finished = resets, is_finished
        self._loaded: Position | None = None
        self._loaded_step = 0
        self._limits: tuple[int | None, int] | None = None  # of steps, least and most, while they are lifted
        self._random: dict[str, Any] | None = None
        self._log: dict[str, Any] | None = None
        self._validating = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Train no more where training was finished; an early stop, say, is in no counter."""
        trainer.should_stop |= self.is_finished
        if self._loaded is not None and self._loaded.validating:
            if trainer.enable_validation:
                self._lift_limits(trainer)
            else:
                self._loaded = self._loaded._replace(validating=False)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A checkpoint may be written within a validation."""
        self._validating = not trainer.sanity_checking
        if self._validating:  # after a sanity check, Lightning puts back the generators that were before it
            self._restore_random()
            self._hand_over(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The position is behind the validation now."""
        self._validating = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the loops begin at the loaded position; what was asked for begins anew."""
        if self._loaded is not None:
            _enter(trainer, self._loaded)
            self._loaded = None
        if {"lr", "optimizer"} & set(self.resets):
            _apply_configured_rate(trainer)
        self._restore_log(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count no epoch that a limit has cut short, as Lightning does: what is logged from now on would say another
        epoch than it says in a run that goes on from here.
        """
        epochs: Any = trainer.fit_loop.epoch_progress.current
        batches: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        if epochs.completed == epochs.ready and batches.completed < trainer.num_training_batches:
            epochs.processed = epochs.completed = epochs.ready - 1

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A run that had nothing left to train has not started."""
        self._restore_log(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """The generators are read between loading a batch and training on it, so they are restored there."""
        self._restore_random()
        self._hand_over(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add position, generators and log."""
        position = _position(trainer, self._validating)
        _settle(checkpoint["loops"]["fit_loop"], trainer, position)
        data = getattr(trainer, "datamodule", None)
        logs = [logger.state() for logger in trainer.loggers if isinstance(logger, CSVLog)]
        checkpoint.setdefault("nala", {}).update(
            {
                "format": FORMAT,
                "position": position._asdict(),
                "global_batch": getattr(data, "global_batch", None),
                "random": _gather(trainer, _random_state()),
                "log": logs[0] if logs else None,
            }
        )

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Take them up, to train on."""
        if trainer.state.fn != "fit":
            return
        for name, key in (("scheduler", "lr_schedulers"), ("optimizer", "optimizer_states")):
            if name in self.resets:
                checkpoint[key] = []
        if "scheduler" in self.resets:
            pl_module.schedule_start = checkpoint["global_step"]  # type: ignore[assignment]
        saved = checkpoint.get("nala")
        if saved is None:
            print("nala: note: another program wrote this checkpoint: the interrupted epoch starts again")
            return
        self._loaded = Position(**saved["position"])
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        within = self._loaded.batch % trainer.accumulate_grad_batches and not progress["is_last_batch"]
        if within and "accumulated" not in checkpoint and trainer.is_global_zero:
            print(
                "nala: note: the checkpoint was written within an optimizer step, without the gradients so far: that "
                "step is of its other batches alone"
            )
        self._loaded_step = checkpoint["global_step"]
        if "data" in self.resets:
            self._loaded = Position(self._loaded.epoch, 0)
            _settle(checkpoint["loops"]["fit_loop"], trainer, self._loaded)
        data: Any = getattr(trainer, "datamodule", None)
        if "data" not in self.resets:
            _keep_global_batch(trainer, len(saved["random"]), saved["global_batch"])
        self._random = _own(trainer, saved["random"])
        if hasattr(data, "resume"):
            consumed, now = self._loaded.batch * (saved["global_batch"] or 0), data.global_batch
            if consumed % now == 0 and now != saved["global_batch"]:  # the same place, counted in batches of today
                self._loaded = self._loaded._replace(batch=consumed // now)
                _settle(checkpoint["loops"]["fit_loop"], trainer, self._loaded)
            data.resume(self._loaded.epoch, consumed)
        self._log = saved["log"]

    def _restore_log(self, trainer: Trainer) -> None:
        # not as soon as it is loaded: a start that is refused, say for its batch size, loses no row
        for logger in trainer.loggers:
            if isinstance(logger, CSVLog) and self._log is not None:
                logger.restore(self._log)
        self._log = None

    def _lift_limits(self, trainer: Trainer) -> None:
        """A run that has no step left to train still has a validation to run: let no limit keep Lightning from it."""
        loop = trainer.fit_loop.epoch_loop
        self._limits = (loop.min_steps, loop.max_steps)
        loop.min_steps = max(loop.min_steps or 0, self._loaded_step + 1)
        if loop.max_steps != -1:
            loop.max_steps = max(loop.max_steps, self._loaded_step + 1)

    def _hand_over(self, trainer: Trainer) -> None:
        """Let Lightning's loop go on by its own rules, once it has begun where it was told to."""
        loop = trainer.fit_loop.epoch_loop
        vars(loop).pop("_should_check_val_fx", None)
        if self._limits is not None:
            loop.min_steps, loop.max_steps = self._limits
            self._limits = None

    def _restore_random(self) -> None:
        if self._random is not None:
            _set_random_state(self._random)
            self._random = None


def _position(trainer: Trainer, validating: bool) -> Position:
    epochs: Any = trainer.fit_loop.epoch_progress.current
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    if epochs.completed < epochs.ready:
        return Position(epochs.processed, batches.completed, validating)
    return Position(epochs.processed, 0)  # training has ended, and with it an epoch


def _settle(loops: dict[str, Any], trainer: Trainer, position: Position) -> None:
    """Make all of Lightning's counters say ``position``; totals over epochs and steps stay."""
    epochs, batches = position.epoch, position.batch
    for scope in ("total", "current"):
        loops["epoch_progress"][scope] = _count(epochs)
    progress = loops["epoch_loop.batch_progress"]
    progress["total"], progress["current"] = _count(progress["total"]["completed"]), _count(batches)
    progress["is_last_batch"] = position.validating and batches == trainer.num_training_batches
    validation = loops["epoch_loop.val_loop.batch_progress"]
    empty = {"total": _count(0), "current": _count(0), "is_last_batch": False}
    validation.update(_begun_validation() if position.validating else empty)


def _begun_validation() -> dict[str, Any]:
    # One batch started and none processed is Lightning's sign that a validation was cut short; it runs as a whole then.
    begun = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
    return {"total": begun, "current": dict(begun), "is_last_batch": False}


def _count(number: int) -> dict[str, int]:
    return dict.fromkeys(("ready", "started", "processed", "completed"), number)


def _enter(trainer: Trainer, position: Position) -> None:
    """Tell Lightning's loops, restored from counters that `_settle` made, how to begin."""
    fit, epoch = trainer.fit_loop, trainer.fit_loop.epoch_loop
    fit._restarting = False  # the epoch begins as any other: its start hooks run, its end steps the schedules
    epoch._restarting, epoch.val_loop._restarting = position.batch > 0, position.validating
    if position.validating:  # a sanity check, which may have come before, leaves no trace of what was loaded
        epoch.val_loop.batch_progress.load_state_dict(_begun_validation())
    epoch.update_restart_stage()
    # Whether a validation comes first is known; Lightning would work it out anew, which a clock, an early stop, a limit
    # of steps or another interval can lead astray. Its own method is back in place as soon as one has begun.
    epoch._should_check_val_fx = lambda data_fetcher: position.validating


def _apply_configured_rate(trainer: Trainer) -> None:
    for config in trainer.lr_scheduler_configs:
        schedule: Any = config.scheduler
        rate = schedule.optimizer.defaults["lr"]
        # What share of its base the present rate is, it stays: torch's schedules go on from it. The schedule knows it,
        # while an optimizer that begins anew does not.
        shares = [
            last / base if base else 1.0 for last, base in zip(schedule.get_last_lr(), schedule.base_lrs, strict=True)
        ]
        schedule.base_lrs, schedule._last_lr = [rate] * len(shares), [rate * share for share in shares]
        for group, last in zip(schedule.optimizer.param_groups, schedule._last_lr, strict=True):
            group["initial_lr"], group["lr"] = rate, last


def _random_state() -> dict[str, Any]:
    """Of this process, in plain types and tensors, so that a checkpoint loads with ``weights_only=True``."""
    kind, keys, *rest = np.random.get_state()
    state = {
        "python": random.getstate(),
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


def _gather(trainer: Trainer, value: Any) -> list[Any]:
    if trainer.world_size == 1:
        return [value]
    values: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(values, value)
    return values


def _own(trainer: Trainer, states: list[Any]) -> dict[str, Any] | None:
    if trainer.world_size != len(states) and trainer.is_global_zero:
        print(
            f"nala: note: {len(states)} processes stopped and {trainer.world_size} go on: the order of the data stays, "
            "dropout draws anew"
        )
    return states[trainer.global_rank] if trainer.world_size == len(states) else None


def _keep_global_batch(trainer: Trainer, before: int, saved: int | None) -> None:
    now, wanted = trainer.world_size, getattr(getattr(trainer, "datamodule", None), "global_batch", None)
    if before == now or None in (saved, wanted) or saved == wanted:  # for as many processes, what was typed is meant
        return
    assert saved is not None
    keeps = f"--data.batch_size {saved // now} keeps it" if saved % now == 0 else f"{now} processes cannot share it out"
    raise UserError(
        f"{before} processes stopped, with a global batch of {saved}, and {now} would go on with {wanted}: {keeps}; "
        "--reset data begins the epoch again with another"
    )
