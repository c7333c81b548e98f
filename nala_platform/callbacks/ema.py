"""Exponential moving average of the weights."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging

from nala_platform.errors import UserError


class EMA(EMAWeightAveraging):
    """Lightning's weight averaging with decay ``d``: ``average <- d * average + (1 - d) * weights`` after each step.

    Validation, a checkpoint's ``state_dict`` and every later test or prediction use the average; training goes on from
    the plain weights, which a checkpoint keeps beside it. Buffers (batch statistics) are averaged alike.

    Args:
        decay: d in (0, 1).
    """

    def __init__(self, decay: float) -> None:
        if not 0.0 < decay < 1.0:
            raise UserError(f"ema.decay must be in (0, 1), or null for no averaging, got {decay}")
        super().__init__(decay=decay)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make the average when a fit begins; drop it when anything else does.

        Lightning keeps the average of a finished fit and, on the next checkpoint load, puts the *plain* weights back:
        a test right after a fit would then score the wrong ones.
        """
        self._average_model = None
        super().setup(trainer, pl_module, stage)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore both sets of weights to go on training; outside a fit the average is all that is wanted."""
        if self._average_model is not None:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)
