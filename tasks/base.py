"""The training loop, once: what every task shares."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.plugins import DoublePrecision, HalfPrecision
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import Metric

from nala_platform.errors import DivergedError, UserError
from nala_platform.metrics import Mean
from nala_platform.optim import COMPILED, AccumulatedGradients, check_schedule, parameter_groups
from nala_platform.runs.contents import refuse_incomplete

ScheduleCallable = Callable[[Optimizer, int], LRScheduler]


_WEIGHTS = ("state_dict", "current_model_state")  # of a checkpoint; the second is there beside an average


class Step(NamedTuple):
    """What one batch gives: a scalar loss, what the network said, what was true, and the loss's weight in a mean.

    ``part``: of which of several test sets each sample is, where the data has some; the scores are told.
    """

    loss: Tensor
    prediction: Tensor
    target: Tensor
    count: int
    part: Tensor | None = None


class Task(LightningModule, ABC):
    """One training loop for all tasks: a task adds its `step`, its `predict` and its metric.

    Args:
        network: what is trained, ready built; it tells ``num_classes`` where the task has classes.
        optimizer: makes the optimizer from parameter groups (`nala_platform.optim.parameter_groups`).
        schedule: makes the learning-rate schedule from the optimizer and the number of optimizer steps of the run;
            stepped once an optimizer step. A class has to take both: see `nala_platform.optim.check_schedule`.
        scores: accumulates the metric of one split; validation and test each get a copy.

    Logged: ``train/loss_step`` and ``lr`` by step, ``train/loss_epoch``; ``val/loss`` and ``test/loss``, each
    batch's weighted by its count; every entry of the scores as ``val/<name>``, ``test/<name>`` over the whole split,
    whatever the batch size or process count.

    Attributes:
        schedule_start: the step at which the schedule begins; not 0 in a run resumed with ``--reset scheduler``.
    """

    def __init__(
        self, *, network: nn.Module, optimizer: OptimizerCallable, schedule: ScheduleCallable, scores: Metric
    ) -> None:
        super().__init__()
        check_schedule(schedule)
        self.network = network
        # Wrapped, because weight averaging copies the module deeply: a function is shared, jsonargparse's callable
        # would take the parser, the trainer and its child processes along.
        self.make_optimizer = lambda groups: optimizer(groups)
        self.make_schedule = lambda made, steps: schedule(made, steps)
        self.scores = nn.ModuleDict({"val": scores.clone(), "test": scores.clone()})
        self._last_loss: Tensor | None = None
        # Not Lightning's own mean of an epoch: that one forgets, in a run resumed within it, what came before.
        self.train_loss = Mean()
        # Nor in an evaluation: over processes with unequal counts it divides by their mean, rounded down.
        self.losses = nn.ModuleDict({"val": Mean(), "test": Mean()})
        self.schedule_start = 0
        self.accumulated = AccumulatedGradients()

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Load a run's checkpoint: the task is built from the ``config.yaml`` of its run folder.

        ``Task.load_from_checkpoint("runs/seg/<time>/checkpoints/best.ckpt")`` works in a fresh process, for each task
        and from this base alike. The weights are the average where the run kept one. Like Lightning's, the module is in
        training mode: call ``eval()`` before predicting.

        Args:
            checkpoint_path: of a ``.ckpt`` file in a run folder.
            map_location: see `torch.load`; None: where the tensors were saved from.
            hparams_file: the run's ``config.yaml``, where the checkpoint is no longer beside it.
            strict: whether the weights must be those of the task, all and no others; None: yes.
            weights_only: nothing else is loaded in either case.
            kwargs: the parts themselves, ``network``, ``optimizer`` and ``schedule`` among them; no configuration is
                read then, and Lightning's own method does the rest.

        Raises:
            UserError: no checkpoint, no configuration, weights that do not fit it, or another kind of task.
        """
        if kwargs or not isinstance(checkpoint_path, str | Path):
            return super().load_from_checkpoint(
                checkpoint_path,
                map_location,
                hparams_file,
                strict,
                True if weights_only is None else weights_only,
                **kwargs,
            )
        from nala_platform.trained import load_task  # which knows the parser of configurations

        config = None if hparams_file is None else Path(hparams_file)
        task = load_task(Path(checkpoint_path), config, map_location, strict is not False)
        if not isinstance(task, cls):
            raise UserError(f"{checkpoint_path} is of a {type(task).__name__}, not of a {cls.__name__}")
        return task

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the network gives; a trace of it, which a logger's graph is drawn from, has the tensors alone."""
        output = self.network(*args, **kwargs)
        if torch.jit.is_tracing() and isinstance(output, Mapping):  # pyright: ignore[reportPrivateImportUsage]
            return tuple(part for part in output.values() if isinstance(part, Tensor))
        return output

    @property
    def example_input_array(self) -> Tensor | None:
        """The first training sample as a batch of one: for a logger's ``log_graph`` and for Lightning's model summary.

        None without a trainer that has a data module, or where that sample cannot be read.
        """
        data: Any = None if self._trainer is None else getattr(self._trainer, "datamodule", None)
        if data is None:
            return None
        loader = data.train_dataloader()
        batch = loader.collate_fn([loader.dataset[0]])
        named = batch if isinstance(batch, Mapping) else {}
        return next((named[key] for key in ("image", "tokens") if key in named), None)

    @abstractmethod
    def step(self, batch: dict[str, Any]) -> Step:
        """Loss, prediction and target of one batch; called in training and in evaluation (``self.training`` tells)."""

    @abstractmethod
    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        """What a person wants to know of one batch, as tensors and plain lists with one entry a sample."""

    def protocol(self) -> dict[str, Any]:
        """What a score means beside what the data and the metric say; plain values."""
        return {}

    def setup(self, stage: str) -> None:
        """Refuse data and model that do not fit together, before the first batch."""
        precision = getattr(self.trainer, "precision_plugin", None)
        if isinstance(precision, HalfPrecision | DoublePrecision):
            # Lightning converts after it has loaded a checkpoint, which would round float64 weights to float32 first
            precision.convert_module(self)
        data = getattr(self.trainer, "datamodule", None)
        for owner, key, flag in (
            (self.network, "num_classes", "--model.network.num_classes"),
            (self.network, "scale", "--model.network.scale"),
            (self.network, "vocab_size", "--model.network.vocab_size"),
            (self, "ignore_index", "--model.ignore_index"),
        ):
            wanted, built = getattr(data, key, None), getattr(owner, key, None)
            if wanted is not None and built is not None and wanted != built:
                raise UserError(
                    f"the data has {key} {wanted}, but the model was built with {built}: add {flag} {wanted}"
                )
        sets = getattr(data, "test_sets", ())
        if sets:
            divide: Any = self.scores["test"].divide
            divide(sets)
        names = getattr(data, "class_names", None)
        for scores in self.scores.values():
            if names is not None and hasattr(scores, "class_names"):
                setattr(scores, "class_names", tuple(names))  # noqa: B010 - a Metric's own attribute

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The loss of one batch; one that is not finite ends the run with a `DivergedError`."""
        step = self.step(batch)
        self._last_loss = step.loss.detach()
        if batch_idx % getattr(self.trainer, "log_every_n_steps", 50) == 0:
            self._stop_if_diverged()
        self.train_loss.update(self._last_loss, step.count)
        # one scalar beside a whole gradient: so the logged loss is that of the global batch
        self.log("train/loss_step", step.loss, prog_bar=True, batch_size=step.count, sync_dist=True)
        return step.loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Accumulate ``val/…``; returns the prediction for callbacks."""
        return self._evaluate("val", batch)

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Accumulate ``test/…``; returns the prediction for callbacks."""
        return self._evaluate("test", batch)

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        """See `predict`."""
        return self.predict(batch)

    def _stop_if_diverged(self) -> None:
        # Asked for only now and then: reading the value makes a GPU wait. A loss that was NaN once stays NaN, because
        # the weights are; so asking before each validation keeps spoiled weights out of every checkpoint.
        if self._last_loss is not None and not torch.isfinite(self._last_loss):
            raise DivergedError(
                f"the training loss is {self._last_loss.item()} at step {self.trainer.global_step}: lower the learning "
                "rate (--model.optimizer.lr), lengthen the warm-up (--model.schedule.warmup) or clip harder "
                "(--trainer.gradient_clip_val)"
            )

    def on_train_epoch_end(self) -> None:
        """Log the mean loss of the epoch, each sample or pixel or token counted once, over all processes."""
        self.log("train/loss_epoch", self.train_loss.compute().float())
        self.train_loss.reset()

    def on_validation_start(self) -> None:
        """No checkpoint of spoiled weights: stop before the validation that would save them."""
        self._stop_if_diverged()

    def on_validation_epoch_start(self) -> None:
        """Judge what a checkpoint would hold: the first process's buffers, by now in place, with or without an average.

        In training each process keeps batch statistics of its own share.
        """
        if self.trainer.world_size > 1:
            for buffer in self.buffers():
                torch.distributed.broadcast(buffer, 0)

    def on_validation_epoch_end(self) -> None:
        """Compute the validation scores over the whole split."""
        self._finish("val")

    def on_test_epoch_end(self) -> None:
        """Compute the test scores over the whole split."""
        self._finish("test")

    def _evaluate(self, split: str, batch: dict[str, Any]) -> Tensor:
        step = self.step(batch)
        scores, loss = self._metrics(split)
        part = () if step.part is None else (step.part,)
        scores.update(step.prediction, step.target, *part)
        loss.update(step.loss, step.count)
        return step.prediction

    def _finish(self, split: str) -> None:
        scores, loss = self._metrics(split)
        # torchmetrics has reduced over processes already, so every rank logs the same number
        values = {"loss": loss.compute(), **scores.compute()}
        self.log_dict({f"{split}/{name}": value.float() for name, value in values.items()})
        scores.reset()
        loss.reset()

    def _metrics(self, split: str) -> tuple[Metric, Metric]:
        scores, loss = self.scores[split], self.losses[split]
        assert isinstance(scores, Metric) and isinstance(loss, Metric)
        return scores, loss

    def configure_optimizers(self) -> dict[str, Any]:
        """Optimizer over parameter groups, schedule over the run's optimizer steps."""
        optimizer = self.make_optimizer(parameter_groups(self.network))
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps):
            raise UserError("the schedule needs the run's length: give --trainer.max_epochs or --trainer.max_steps")
        schedule = self.make_schedule(optimizer, int(steps) - self.schedule_start)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        """Go on with a step that the checkpoint was written in."""
        self.accumulated.restore(self, self.trainer.accumulate_grad_batches)

    def on_before_zero_grad(self, optimizer: Optimizer) -> None:
        """A step begins."""
        self.accumulated.batches = 0

    def on_before_backward(self, loss: Tensor) -> None:
        """One more batch accumulates."""
        self.accumulated.batches += 1

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Make the gradient the mean over the batches of the step, before it is clipped.

        Log the learning rate that this step uses, in the steps that have a row in the log: `log` is not cheap.
        """
        if not self.trainer.strategy.handles_gradient_accumulation:
            self.accumulated.average(optimizer, self.trainer.accumulate_grad_batches)
        if self.trainer._logger_connector.should_update_logs:
            self.log("lr", torch.tensor(optimizer.param_groups[0]["lr"]), prog_bar=False)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the loss of the epoch so far, of each process; name weights as if nothing was compiled."""
        mean: Any = self.train_loss
        sums = self.all_gather(torch.stack([mean.total, mean.weight]))
        assert isinstance(sums, Tensor)
        checkpoint["train_loss"] = sums.reshape(-1, 2).tolist()
        checkpoint["schedule_start"] = self.schedule_start
        if self.accumulated.batches:
            checkpoint["accumulated"] = self._gathered(
                self.accumulated.state(self, self.trainer.accumulate_grad_batches)
            )
        for key in _WEIGHTS:
            if key in checkpoint:
                checkpoint[key] = {name.replace(COMPILED, ""): value for name, value in checkpoint[key].items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take them up, whether this network is compiled or not and whether that one was.

        Raises:
            UserError: the checkpoint lacks what is wanted of it.
        """
        self._refuse_incomplete(checkpoint)
        own = {name.replace(COMPILED, ""): name for name in self.state_dict()}
        for key in _WEIGHTS:
            if key in checkpoint:
                plain = {name.replace(COMPILED, ""): value for name, value in checkpoint[key].items()}
                checkpoint[key] = {own.get(name, name): value for name, value in plain.items()}
        self.schedule_start = checkpoint.get("schedule_start", 0)
        if "train_loss" in checkpoint:
            self._take_loss(torch.tensor(checkpoint["train_loss"], dtype=torch.float64))

        if "accumulated" in checkpoint and self._trainer and self.trainer.state.fn == "fit":
            self.accumulated.load(checkpoint["accumulated"], self.trainer.global_rank, self.trainer.world_size)

    def _refuse_incomplete(self, checkpoint: dict[str, Any]) -> None:
        trainer: Any = self._trainer
        callbacks = [] if trainer is None else trainer.callbacks
        # of a run, that is: what a callback of the user's has to say is between it and Lightning
        ours = [c for c in callbacks if type(c).__module__.startswith("nala_platform.") and c.state_dict()]
        refuse_incomplete(
            checkpoint,
            None if trainer is None else trainer.ckpt_path,
            trains=trainer is not None and trainer.state.fn == "fit",
            averages=any(isinstance(callback, WeightAveraging) for callback in callbacks),
            callbacks=[callback.state_key for callback in ours],
        )

    def _gathered(self, value: Any) -> list[Any]:
        """The value of each process, in the first one, which alone writes a checkpoint."""
        if self.trainer.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.trainer.world_size if self.trainer.is_global_zero else []
        torch.distributed.gather_object(value, values or None)
        return values

    def _take_loss(self, sums_P2: Tensor) -> None:
        processes, rank = (self.trainer.world_size, self.trainer.global_rank) if self._trainer else (1, 0)
        if len(sums_P2) != processes:  # another number of processes: the first one holds the sum
            sums_P2 = torch.stack([sums_P2.sum(0), *torch.zeros(processes - 1, 2, dtype=torch.float64)])
        mean: Any = self.train_loss
        mean.reset()
        mean.update(torch.zeros(()), 0)  # so that it counts as filled
        mean.total, mean.weight = sums_P2[rank].to(mean.total)
