"""Image classification."""

from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from timm.data.mixup import Mixup
from torch import Tensor, nn

from nala_platform.errors import UserError
from nala_platform.metrics import ClassificationScores

from .base import ScheduleCallable, Step, Task


class ClassificationTask(Task):
    """Cross-entropy on hard or soft labels; top-1 and top-5 accuracy.

    Batches hold ``image (B, 3, H, W)`` float32, ``target (B,)`` int64 and ``name``. In training, Mixup (arXiv
    1710.09412) and CutMix (arXiv 1905.04899) blend pairs of a batch and their labels; evaluation never does.

    Args:
        network: logits ``(B, C)`` from an image, with ``num_classes``.
        optimizer: see `Task`.
        schedule: see `Task`.
        label_smoothing: share of each label spread evenly over all classes, in [0, 1).
        mixup_alpha: parameter of Mixup's Beta distribution; 0 turns it off.
        cutmix_alpha: the same for CutMix; with both on, each batch takes either with equal chance.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: OptimizerCallable,
        schedule: ScheduleCallable,
        label_smoothing: float = 0.0,
        mixup_alpha: float = 0.0,
        cutmix_alpha: float = 0.0,
    ) -> None:
        num_classes = int(getattr(network, "num_classes", 0))
        if num_classes < 2:
            raise UserError(f"model.network.num_classes must be 2 or more for classification, got {num_classes}")
        if not 0.0 <= label_smoothing < 1.0:
            raise UserError(f"model.label_smoothing must be in [0, 1), got {label_smoothing}")
        for key, alpha in (("mixup_alpha", mixup_alpha), ("cutmix_alpha", cutmix_alpha)):
            if alpha < 0.0:
                raise UserError(f"model.{key} is {alpha}: it must be above 0, or 0 for none")
        super().__init__(
            network=network, optimizer=optimizer, schedule=schedule, scores=ClassificationScores(num_classes)
        )
        self.label_smoothing = label_smoothing
        self.mix = None
        if mixup_alpha > 0.0 or cutmix_alpha > 0.0:
            self.mix = Mixup(
                mixup_alpha=mixup_alpha,
                cutmix_alpha=cutmix_alpha,
                label_smoothing=label_smoothing,
                num_classes=num_classes,
            )
        self.save_hyperparameters(ignore=["network", "optimizer", "schedule"])

    def step(self, batch: dict[str, Any]) -> Step:
        """Cross-entropy of one batch; see `Task.step`."""
        image, target = batch["image"], batch["target"]
        if self.training and self.mix is not None:
            return self._mixed_step(image, target)
        smoothing = self.label_smoothing if self.training else 0.0
        logits = self.network(image)
        return Step(F.cross_entropy(logits, target, label_smoothing=smoothing), logits, target, len(image))

    def _mixed_step(self, image: Tensor, target: Tensor) -> Step:
        assert self.mix is not None
        # Mixup pairs sample i with sample B-1-i, so timm wants an even batch; an odd last one keeps its middle out.
        even = len(image) - len(image) % 2
        mixed, soft = self.mix(image[:even].clone(), target[:even])
        if even < len(image):
            left = F.one_hot(target[even:], soft.shape[1]).to(soft)
            left = left * (1.0 - self.label_smoothing) + self.label_smoothing / soft.shape[1]
            mixed, soft = torch.cat([mixed, image[even:]]), torch.cat([soft, left])
        logits = self.network(mixed)
        return Step(F.cross_entropy(logits, soft), logits, soft, len(image))

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        """``{"name": list, "class": (B,) int64, "probability": (B,) float32}`` of the most likely class."""
        probability, index = self.network(batch["image"]).float().softmax(dim=1).max(dim=1)
        return {"name": batch["name"], "class": index, "probability": probability}
