"""What the terminal shows while a run goes on."""

import sys
import time

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar


def progress(metric: str) -> Callback:
    """A live bar where the output is a terminal, one line an epoch where it is a file or a pipe.

    Args:
        metric: logged name to show, such as ``val/miou``.
    """
    if sys.stdout.isatty():
        return RichProgressBar(leave=False, refresh_rate=1)
    return EpochLines(metric)


class EpochLines(Callback):
    """Prints ``epoch 3/20  train/loss_epoch 0.4120  val/miou 0.6930  12.1 s`` after each epoch.

    Args:
        metric: logged name to show.
    """

    def __init__(self, metric: str) -> None:
        super().__init__()
        self.metric = metric
        self._epoch: int | None = None
        self._start = time.monotonic()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The epoch before is complete now, its mean loss logged: print it, and start the next one's clock."""
        self._print(trainer)
        self._epoch, self._start = trainer.current_epoch, time.monotonic()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the last epoch."""
        self._print(trainer)
        self._epoch = None

    def _print(self, trainer: Trainer) -> None:
        if self._epoch is None or not trainer.is_global_zero:
            return
        names = ("train/loss_epoch", "val/loss", self.metric)
        metrics = trainer.callback_metrics
        shown = "  ".join(f"{name} {float(metrics[name]):.4f}" for name in dict.fromkeys(names) if name in metrics)
        total = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else "?"
        seconds = time.monotonic() - self._start
        print(f"epoch {self._epoch + 1}/{total}  {shown}  {seconds:.1f} s", flush=True)
