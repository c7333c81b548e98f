"""Names of metrics that the user's callbacks watch, looked up before the first epoch."""

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from nala_platform.errors import UserError, near


class Monitors(Callback):
    """Refuses a callback of Lightning's that monitors a validation metric which validation does not log.

    The check before the first epoch (``--trainer.num_sanity_val_steps``) finds it; Lightning itself looks after an
    epoch. It must stand before the callbacks that it looks at. Names of other metrics are Lightning's to check: they
    may be logged later.

    Raises:
        UserError: names the metric, the nearest one and all that are logged.
    """

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at each callback's metric."""
        if trainer.state.fn != "fit":
            return
        known = sorted(name for name in trainer.callback_metrics if name.startswith("val/"))
        for callback in getattr(trainer, "callbacks"):  # noqa: B009 - not in the Trainer's type
            if not isinstance(callback, EarlyStopping | ModelCheckpoint) or not getattr(callback, "strict", True):
                continue
            name = callback.monitor
            if name is not None and name.startswith("val/") and name not in known:
                raise UserError(
                    f"trainer.callbacks: {type(callback).__name__}'s monitor {name!r} is not logged; validation logs "
                    f"{', '.join(known)}{near(name, known).removesuffix('.')}"
                )
