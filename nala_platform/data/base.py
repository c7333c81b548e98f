"""What every data module does, written once: loaders, order, shares of several processes.

Shapes: N samples, B batch of one process, H W pixels.
"""

import os
from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import Dataset

from nala_platform.data.content import tell_change
from nala_platform.data.loader import Guarded, Loader, Sample, collate, outlive_signals
from nala_platform.data.order import EvalOrder, Rest, TrainOrder
from nala_platform.errors import UserError

Part = Literal["train", "val", "test"]
Split = Literal["train", "val", "test", "predict"]
Mean = tuple[float, float, float]

IMAGENET_MEAN: Mean = (0.485, 0.456, 0.406)
IMAGENET_STD: Mean = (0.229, 0.224, 0.225)

_MOST_WORKERS = max(256, 4 * (os.cpu_count() or 1))
_LEAVE_OUT = "mend the file, or leave it out by --data.exclude; nala check-data lists all"
STOPS = f"{_LEAVE_OUT}; --bad_samples N lets training go on without up to N files"
COUNTS = f"a score counts every sample: {_LEAVE_OUT}"


class DataModule(LightningDataModule, ABC):
    """Loaders over the data sets that a concrete module names.

    Batches are dicts. Classification: ``image (B, 3, H, W)`` float32, normalised, ``target (B,)`` int64, ``name``
    list of B strings. Segmentation: ``target (B, H, W)`` int64. Prediction: no ``target``.

    The training order and augmentation are functions of ``(seed, epoch, index)``: see `nala_platform.data.order`. The
    Trainer must have ``use_distributed_sampler=False``: each process takes its own share here. With
    ``overfit_batches`` every epoch has the first batches of the first one, augmented alike.

    A training sample whose file is bad is replaced by another one of the split, as `nala_platform.data.loader.Guarded`
    says, where ``bad_samples`` is not 0; the batch then tells of it (`BAD`). In evaluation it ends the run.

    Attributes:
        num_classes: C.
        class_names: C names.
        mean: of each channel, on the scale 0..1; what the images were normalised with.
        std: likewise.
        crop: height and width of what training sees of a picture; None: of no fixed size.
        bad_samples: whether training goes on past a bad file: 0 does not. Who sets it counts the files, and stops.
        rest: what a training epoch does with the samples behind its last whole batch: see `TrainOrder`.
        copies: of each sample that an epoch draws, each augmented anew: see `TrainOrder`.

    Args:
        batch_size: of one process, in training.
        eval_batch_size: of one process, in validation and test.
        predict_batch_size: of one process, in prediction.
        num_workers: loader processes of each loader; 0 loads in the training process.
        seed: of order and augmentation; None is the run's, ``seed_everything``.
    """

    num_classes: int
    class_names: tuple[str, ...]
    mean: Mean = IMAGENET_MEAN
    std: Mean = IMAGENET_STD
    crop: tuple[int, int] | None = None
    bad_samples: int = 0
    rest: Rest = "left out"
    copies: int = 1

    def __init__(
        self, *, batch_size: int, eval_batch_size: int, predict_batch_size: int, num_workers: int, seed: int | None
    ) -> None:
        super().__init__()
        for key, value, least in (
            ("batch_size", batch_size, 1),
            ("eval_batch_size", eval_batch_size, 1),
            ("num_workers", num_workers, 0),
            ("seed", seed or 0, 0),
        ):
            if value < least:
                raise UserError(f"data.{key} is {value}: it must be {least} or more")
        if num_workers > _MOST_WORKERS:
            raise UserError(f"data.num_workers is {num_workers}: each is a process; give {_MOST_WORKERS} or fewer")
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.predict_batch_size = predict_batch_size
        self.num_workers = num_workers
        # what seed_everything leaves for everyone: runs of another seed see another order
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed
        self._position = (0, 0)
        self._overfitting: Any = None  # the trainer whose overfit_batches is in force
        # a process without a share of few predictions is no mistake
        self.allow_zero_length_dataloader_with_multiple_devices = True

    @abstractmethod
    def items(self, split: Split) -> Dataset[Sample]:
        """The data set of a split: a length, and a sample for each `Draw`."""

    def whole(self, split: Split) -> Dataset[Sample]:
        """The samples of a split as they lie on disk, for ``nala check-data``: each once, neither drawn nor augmented.

        ``target`` is what training is given (a class, or the labels of all pixels). A module that augments, crops or
        repeats says here what it reads before that.
        """
        return self.items(split)

    @abstractmethod
    def protocol(self) -> dict[str, Any]:
        """What a score on this data means: source, split, counts, preprocessing; plain values."""

    @abstractmethod
    def baselines(self) -> dict[str, dict[str, float]]:
        """Scores of trivial methods on the test split, ``{method: {metric: value}}``; empty where there are none."""

    @property
    def global_batch(self) -> int:
        """Samples of one training batch over all processes."""
        return self.batch_size * self._share()["world_size"]

    def resume(self, epoch: int, consumed: int) -> None:
        """Let the training loaders made from now on begin in ``epoch``, behind its first ``consumed`` samples."""
        self._position = (epoch, consumed)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: how many training samples there are, since the order of an epoch depends on it."""
        return {"samples": _length(self.items("train"))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Say so where training goes on with more or fewer, as when a bad file has been left out."""
        now = self.state_dict()
        counts = [state.get("samples", "an unknown number of") for state in (state_dict, now)]
        what = f"the number of training samples ({counts[0]}; now {counts[1]}), and so the order of an epoch,"
        tell_change(self.trainer, state_dict, now, what)

    def train_dataloader(self) -> Loader:
        """Batches in the epoch's order."""
        items = self.items("train")
        how: dict[str, Any] = {"seed": self.seed, "rest": self.rest, "copies": self.copies}
        how["repeats"] = self._overfits()
        order = TrainOrder(_length(items), self.batch_size, **how, **self._share())
        order.resume(*self._position)
        guarded = Guarded(items, seed=self.seed if self.bad_samples else None, mend=STOPS)
        return self._loader(guarded, order, self.batch_size)

    def val_dataloader(self) -> Loader:
        """The validation split, each sample once."""
        return self._in_order("val", self.eval_batch_size)

    def test_dataloader(self) -> Loader:
        """The test split, each sample once."""
        return self._in_order("test", self.eval_batch_size)

    def predict_dataloader(self) -> Loader:
        """What ``predict_path`` names, or the test split; each sample once; bad files are skipped and named."""
        return self._in_order("predict", self.predict_batch_size, all_share=False)

    def _in_order(self, split: Split, batch_size: int, all_share: bool = True) -> Loader:
        self._overfits()
        items = Guarded(self.items(split), mend=COUNTS, skips=split == "predict")
        return self._loader(items, EvalOrder(len(items), all_share=all_share, **self._share()), batch_size)

    def _overfits(self) -> bool:
        """Whether training repeats its first batches: ``trainer.overfit_batches``.

        Lightning would then put a sampler of its own in the place of ours, in training and validation: one that knows
        no position to resume from and gives every process all samples. So the number is taken from it; the limits that
        it sets on batches stand since the trainer was made.
        """
        trainer: Any = self.trainer
        if getattr(trainer, "overfit_batches", 0):
            trainer.overfit_batches, self._overfitting = 0.0, trainer
        return trainer is not None and self._overfitting is trainer

    def _share(self) -> dict[str, Any]:
        if self.trainer is None:
            return {"rank": 0, "world_size": 1}
        connector = getattr(self.trainer, "_accelerator_connector", None)
        if self.trainer.world_size > 1 and getattr(connector, "use_distributed_sampler", False):
            raise UserError(
                "trainer.use_distributed_sampler is true: it would share out once more what each process has its part "
                "of, and pad it: set it to false"
            )
        return {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}

    def _loader(self, items: Guarded, order: TrainOrder | EvalOrder, batch_size: int) -> Loader:
        return Loader(
            items,
            batch_size=batch_size,
            sampler=order,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            collate_fn=collate,
            worker_init_fn=outlive_signals,
            # without its own generator, each pass over a loader would draw from, and so shift, the one of the dropout
            generator=torch.Generator().manual_seed(self.seed),
        )


def _length(items: Dataset[Sample]) -> int:
    return len(items)  # type: ignore[arg-type]
