"""What happens once when a run starts."""

from collections.abc import Callable

from lightning.pytorch import Callback, LightningModule, Trainer


class SameFolder(Callback):
    """Lets every process know the first one's folder: those that torchrun starts have each made up their own."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the first process's word."""
        shared = trainer.strategy.broadcast(trainer.default_root_dir)
        trainer._default_root_dir = shared  # type: ignore[attr-defined]


class OnTrainStart(Callback):
    """Does something when all that could fail at the start of a fit has not.

    Args:
        action: what.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__()
        self._action = action

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do it."""
        self._action()
