"""Semantic segmentation.

Shapes: B batch, K classes, H W pixels.
"""

from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from nala_platform.errors import UserError
from nala_platform.metrics import SegmentationScores

from .base import ScheduleCallable, Step, Task
from .windows import Inference, segment, strips


class SegmentationTask(Task):
    """Per-pixel cross-entropy; mIoU, per-class IoU, pixel and mean accuracy over the whole split.

    Evaluation and prediction see images as ``inference`` says; scores and loss are at the labels' own size.

    Batches hold ``image (B, 3, H, W)`` float32, ``target (B, H, W)`` int64 and ``name``.

    Args:
        network: logits ``(B, K, H, W)`` at the image's size, with ``num_classes``.
        optimizer: see `Task`.
        schedule: see `Task`.
        ignore_index: label of pixels that enter neither loss nor score.
        class_weights: K factors on the loss of each true class, or ``None`` for equal ones.
        inference: windows, sizes and views of validation, test and prediction.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: OptimizerCallable,
        schedule: ScheduleCallable,
        ignore_index: int = 255,
        class_weights: list[float] | None = None,
        inference: Inference = Inference(),  # noqa: B008 - frozen
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
        self.ignore_index, self.inference = ignore_index, inference
        weights = None if class_weights is None else torch.tensor(class_weights)
        self.register_buffer("class_weights", weights, persistent=False)
        self.save_hyperparameters(ignore=["network", "optimizer", "schedule", "inference"])

    def protocol(self) -> dict[str, Any]:
        """What a score means beside the data and the metric: how images are seen, and the classes without truth."""
        absent = {split: getattr(scores, "absent", None) for split, scores in self.scores.items()}
        known = {split: list(names) for split, names in absent.items() if names is not None}
        return {
            "inference": str(self.inference),
            "ignore_index": self.ignore_index,
            "classes without a true pixel": known,
        }

    def step(self, batch: dict[str, Any]) -> Step:
        """Cross-entropy of one batch; see `Task.step`. In evaluation the prediction is class indices ``(B, H, W)``."""
        target_BHW = batch["target"]
        if not self.training:
            return self._judged(batch["image"], target_BHW)
        logits_BKHW = self.network(batch["image"])
        total, norm = self._losses(logits_BKHW, target_BHW)
        # A batch whose pixels are all ignored has loss 0 with gradient 0; the library's mean would give 0/0.
        return Step(total / norm.clamp(min=1e-6), logits_BKHW, target_BHW, len(target_BHW))

    def _judged(self, image_BCYX: Tensor, target_BHW: Tensor) -> Step:
        """Weighted by its count, the losses of batches average to that of the split (without class weights)."""
        size = (int(target_BHW.shape[1]), int(target_BHW.shape[2]))
        scores_BKYX = segment(self.network, image_BCYX, self.inference, size)
        predicted_BHW = torch.empty_like(target_BHW)
        total = norm = scores_BKYX.new_zeros(())
        for rows, scores_BKRW in strips(scores_BKYX, size):
            predicted_BHW[:, rows] = scores_BKRW.argmax(1)
            part, counted = self._losses(scores_BKRW, target_BHW[:, rows])
            total, norm = total + part, norm + counted
        count = max(1, int((target_BHW != self.ignore_index).sum()))
        return Step(total / norm.clamp(min=1e-6), predicted_BHW, target_BHW, count)

    def _losses(self, logits_BKHW: Tensor, target_BHW: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy, weighted and summed over the pixels that count, and the sum of their weights."""
        weights = self.class_weights
        assert weights is None or isinstance(weights, Tensor)
        total = F.cross_entropy(
            logits_BKHW.float(), target_BHW, weight=weights, ignore_index=self.ignore_index, reduction="sum"
        )
        counted = target_BHW != self.ignore_index
        if weights is None:
            return total, counted.sum().to(total.dtype)
        return total, weights[target_BHW.where(counted, 0)].where(counted, 0.0).sum()

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        """``{"name": list, "mask": (B, H, W) int64 class indices}`` at the size of the image given."""
        image = batch["image"]
        size = (int(image.shape[-2]), int(image.shape[-1]))
        scores = segment(self.network, image, self.inference, size)
        return {"name": batch["name"], "mask": torch.cat([part.argmax(1) for _, part in strips(scores, size)], dim=1)}
