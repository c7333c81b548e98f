"""Exponential moving average of the weights."""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import FSDPStrategy
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor

from nala_platform.errors import UserError

# A tensor of the average and one of the weights: the modules' own tables that hold them, and the name in both. A module
# may put another tensor in the place of a buffer.
_Place = tuple[dict[str, Any], dict[str, Any], str]


_HALF = (torch.float16, torch.bfloat16)


class EMA(WeightAveraging):
    """Lightning's weight averaging, exponential: ``average <- d_n * average + (1 - d_n) * weights`` after each step n.

    ``d_n = min(decay, (1 + n) / (10 + n))``: the young average forgets the random start quickly, whatever the decay.

    Validation, a checkpoint's ``state_dict`` and every later test or prediction use the average; training goes on from
    the plain weights, which a checkpoint keeps beside it. Buffers (batch statistics) are averaged alike.

    The average is in float32, whatever the precision of the weights (``trainer.precision: bf16-true``): an average of
    many steps moves by less than a half-precision number can tell.

    Args:
        decay: in (0, 1); the window is about ``1 / (1 - decay)`` steps.
    """

    def __init__(self, decay: float) -> None:
        if not 0.0 < decay < 1.0:
            raise UserError(f"ema.decay must be in (0, 1), or null for no averaging, got {decay}")
        super().__init__(multi_avg_fn=self._average)
        self.decay = decay
        self._plain: list[Tensor] | None = None  # the weights, while the average is in their place
        self._places: list[list[_Place]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find what is averaged with what, by kind: torch's `update_parameters` does so anew in each step."""
        assert self._average_model is not None
        self._average_model.to(pl_module.device)  # it was made before the weights went to theirs
        kinds: dict[tuple[torch.device, torch.dtype], list[_Place]] = {}
        seen: set[int] = set()
        for averaged, module in zip(self._average_model.module.modules(), pl_module.modules(), strict=True):
            for averages, weights in ((averaged._parameters, module._parameters), (averaged._buffers, module._buffers)):
                for name, weight in weights.items():
                    if weight is not None and id(weight) not in seen:  # what is tied counts once
                        seen.add(id(weight))
                        kinds.setdefault((weight.device, weight.dtype), []).append((averages, weights, name))
        self._places = list(kinds.values())

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: STEP_OUTPUT, batch: Any, batch_idx: int
    ) -> None:
        """Average after each optimizer step."""
        average = self._average_model
        assert average is not None
        if trainer.global_step <= self._latest_update_step:  # gradients are being accumulated
            return
        if average.n_averaged == 0:
            average.update_parameters(pl_module)  # a copy
        else:
            with torch.no_grad():
                for places in self._places:
                    averages: Any = [table[name] for table, _, name in places]
                    kind = averages[0].dtype
                    self._average(averages, [table[name].to(kind) for _, table, name in places], average.n_averaged)
                average.n_averaged += 1
        self._latest_update_step = trainer.global_step

    def _average(self, averages: list[Tensor], weights: list[Tensor], count: Tensor | int) -> None:
        if not averages[0].is_floating_point():  # counters, such as BatchNorm's, have no mean
            for average, weight in zip(averages, weights, strict=True):
                average.copy_(weight)
            return
        decay = min(self.decay, (1.0 + float(count)) / (10.0 + float(count)))
        torch._foreach_lerp_(averages, weights, 1.0 - decay)  # pyright: ignore[reportPrivateImportUsage]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make the average when a fit begins; drop it when anything else does.

        Lightning keeps the average of a finished fit and, on the next checkpoint load, puts the *plain* weights back:
        a test right after a fit would then score the wrong ones.
        """
        if isinstance(trainer.strategy, FSDPStrategy):
            raise UserError("weights that FSDP shares out are not averaged here: add --ema.decay null")
        self._average_model = self._plain = None
        super().setup(trainer, pl_module, stage)
        average: Any = self._average_model
        if average is not None:
            for tensor in (*average.parameters(), *average.buffers()):
                if tensor.dtype in _HALF:  # of a module that is in its precision already; else it comes there later
                    tensor.data = tensor.data.float()

    def _swap_models(self, pl_module: LightningModule) -> None:
        """Put the average in the place of the weights, or the weights back.

        Lightning exchanges the values. Where weights and average differ in precision, both would be rounded.
        """
        current = (*pl_module.parameters(), *pl_module.buffers())
        if self._plain is None:
            self._plain = [tensor.detach().clone() for tensor in current]
            self._copy_average_to_current(pl_module)
            return
        for tensor, plain in zip(current, self._plain, strict=True):
            tensor.data.copy_(plain)
        self._plain = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the plain weights in place: the last checkpoint, from which a longer run may go on, wants them."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the average in place for who holds the module."""
        self._copy_average_to_current(pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save both sets of weights.

        A validation runs on the average; one that is saved in its midst is left at once, so the plain weights, which
        the checkpoint's tensors alias, go back in place for good.
        """
        if self._plain is not None:
            self._swap_models(pl_module)
        super().on_save_checkpoint(trainer, pl_module, checkpoint)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore both sets of weights to go on training; outside a fit the average is all that is wanted."""
        if self._average_model is not None:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)
