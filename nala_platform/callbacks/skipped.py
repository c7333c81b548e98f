"""Inputs of a prediction that cannot be read."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from nala_platform.errors import IncompleteError

SHOWN = 5


class SkippedInputs(Callback):
    """Counts, over all processes, the inputs that the loaders of a prediction have skipped."""

    def __init__(self) -> None:
        super().__init__()
        self._skipped: list[str] = []
        self._predicted = 0

    def on_predict_batch_end(self, *_: Any) -> None:
        """Count what was predicted."""
        self._predicted += 1

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put together what the processes have skipped."""
        loaders: Any = trainer.predict_dataloaders
        loaders = loaders if isinstance(loaders, list | tuple) else [loaders]
        states: list[Any] = [
            ([str(problem) for loader in loaders for problem in getattr(loader, "skipped", ())], self._predicted)
        ]
        if trainer.world_size > 1:
            mine, states = states[0], [None] * trainer.world_size
            torch.distributed.all_gather_object(states, mine)
        # the first process speaks for all
        self._skipped = [text for texts, _ in states for text in texts] if trainer.is_global_zero else []
        self._predicted = sum(predicted for _, predicted in states)

    def check(self, folder: str) -> None:
        """Say so if inputs were skipped.

        Args:
            folder: where the predictions of the others are.

        Raises:
            IncompleteError: they were.
        """
        if not self._skipped:
            return
        count = len(self._skipped)
        few = "; ".join(self._skipped[:SHOWN]) + (" …" if count > SHOWN else "")
        what = "1 input cannot be read and was" if count == 1 else f"{count} inputs cannot be read and were"
        rest = f"the predictions of the others are in {folder}" if self._predicted else "there are no others"
        raise IncompleteError(f"{what} skipped; {rest}: {few}")
