"""Training samples whose files are bad: named, counted, and too many of them end the run."""

import sys
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from nala_platform.errors import UserError

KEY = "bad"  # of a batch; see nala_platform.data.loader
SHOWN = 5


class BadSamples(Callback):
    """Lets training replace samples with bad files, up to a limit; evaluation replaces none.

    A file is named once, in a line on stderr, and counts once, in however many epochs it is drawn. What each process
    has found is put together at the end of an epoch, before a validation and in a checkpoint, so where several train, a
    run may go past the limit until then. A resumed run goes on counting.

    Args:
        limit: how many files may be bad; 0 ends the run at the first, with what is wrong with it.
    """

    def __init__(self, limit: int = 0) -> None:
        super().__init__()
        if limit < 0:
            raise UserError(f"--bad_samples is {limit}: it must be 0 or more")
        self.limit = limit
        self._trains = False
        self._texts: dict[str, str] = {}
        self._coming: list[Any] = []  # what the batch that is being trained on tells of
        self._before = self._own = 0  # samples that were replaced: in the checkpoint, and here since then

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Tell the data."""
        data: Any = getattr(trainer, "datamodule", None)
        self._trains |= stage == "fit"
        if stage == "fit" and data is not None:
            data.bad_samples = self.limit

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Take out what the batch tells of: a checkpoint that is written now does not count it, as it comes again."""
        self._coming = batch.pop(KEY, []) if isinstance(batch, dict) else []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count it; only now, since batches are loaded before the ones ahead are trained on."""
        bad, self._coming = self._coming, []
        self._own += len(bad)
        for _, name, text in chain.from_iterable(bad):
            path = str(Path(name).absolute())  # resumed from its configuration, a run knows no other
            if path not in self._texts:
                self._texts[path] = text
                print(f"nala: warning: {path}: {text}: another sample takes its place", file=sys.stderr, flush=True)
        if bad:
            self._stop_if_too_many()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put together what the processes have found."""
        self._gather(trainer)
        self._stop_if_too_many()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Likewise."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._gather(trainer)
            self._stop_if_too_many()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep files and counts."""
        self._gather(trainer)
        if self._texts:
            state = {"texts": dict(self._texts), "replaced": self._before}
            checkpoint.setdefault("nala", {})["bad_samples"] = state

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Take them up; not those of the best checkpoint, which a fit scores when it has ended."""
        if trainer.state.fn != "fit" and self._trains:
            return
        state = checkpoint.get("nala", {}).get("bad_samples", {"texts": {}, "replaced": 0})
        self._texts, self._before, self._own = dict(state["texts"]), state["replaced"], 0

    def found(self) -> dict[str, Any]:
        """For the summary: how many files were bad, how often one was replaced, and the first files."""
        paths = sorted(self._texts)
        return {"files": len(paths), "replaced": self._before + self._own, "limit": self.limit, "first": paths[:SHOWN]}

    def _gather(self, trainer: Trainer) -> None:
        states: list[Any] = [(self._texts, self._own)]
        if trainer.world_size > 1:
            states = [None] * trainer.world_size
            torch.distributed.all_gather_object(states, (self._texts, self._own))
        for texts, own in states:
            self._texts |= texts
            self._before += own
        self._own = 0

    def _stop_if_too_many(self) -> None:
        if len(self._texts) > self.limit:
            few = "; ".join(f"{path}: {text}" for path, text in list(self._texts.items())[-SHOWN:])
            raise UserError(
                f"{len(self._texts)} files of the training data are bad, more than --bad_samples {self.limit} allows: "
                f"{few}{' …' if len(self._texts) > SHOWN else ''} (nala check-data lists all, and --data.exclude "
                "leaves them out)"
            )
