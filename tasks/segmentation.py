"""Semantic segmentation."""

from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from nala_platform.errors import UserError
from nala_platform.metrics import SegmentationScores

from .base import ScheduleCallable, Step, Task


class SegmentationTask(Task):
    """Per-pixel cross-entropy; mIoU, per-class IoU, pixel and mean accuracy over the whole split.

    Batches hold ``image (B, 3, H, W)`` float32, ``target (B, H, W)`` int64 and ``name``.

    Args:
        network: logits ``(B, C, H, W)`` at the image's size, with ``num_classes``.
        optimizer: see `Task`.
        schedule: see `Task`.
        ignore_index: label of pixels that enter neither loss nor score.
        class_weights: C factors on the loss of each true class, or ``None`` for equal ones.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: OptimizerCallable,
        schedule: ScheduleCallable,
        ignore_index: int = 255,
        class_weights: list[float] | None = None,
    ) -> None:
        num_classes = int(getattr(network, "num_classes", 0))
        if class_weights is not None and len(class_weights) != num_classes:
            raise UserError(
                f"model.class_weights has {len(class_weights)} entries, but the network has {num_classes} classes"
            )
        super().__init__(
            network=network,
            optimizer=optimizer,
            schedule=schedule,
            scores=SegmentationScores(num_classes, ignore_index),
        )
        self.ignore_index = ignore_index
        weights = None if class_weights is None else torch.tensor(class_weights)
        self.register_buffer("class_weights", weights, persistent=False)
        self.save_hyperparameters(ignore=["network", "optimizer", "schedule"])

    def step(self, batch: dict[str, Any]) -> Step:
        """Cross-entropy of one batch; see `Task.step`."""
        logits, target = self.network(batch["image"]), batch["target"]
        # Weighted by counted pixels, the losses of batches average to that of the split (without class weights). Only
        # outside of training: the count of a batch on a GPU costs a wait.
        count = len(target) if self.training else max(1, int((target != self.ignore_index).sum()))
        return Step(self._loss(logits, target), logits, target, count)

    def _loss(self, logits: Tensor, target: Tensor) -> Tensor:
        weights = self.class_weights
        assert weights is None or isinstance(weights, Tensor)
        total = F.cross_entropy(logits.float(), target, weight=weights, ignore_index=self.ignore_index, reduction="sum")
        counted = target != self.ignore_index
        # A batch whose pixels are all ignored has loss 0 with gradient 0; the library's mean would give 0/0.
        norm = counted.sum() if weights is None else weights[target.where(counted, 0)].where(counted, 0.0).sum()
        return total / norm.clamp(min=1e-6)

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        """``{"name": list, "mask": (B, H, W) uint8 or int64 class indices}`` at the size of the image given."""
        return {"name": batch["name"], "mask": self.network(batch["image"]).argmax(dim=1)}
