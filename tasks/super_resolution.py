"""Super-resolution."""

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from nala_platform.errors import UserError
from nala_platform.similarity import SuperResolutionScores

from .base import ScheduleCallable, Step, Task
from .tiles import upscale_tiled

CHARBONNIER_EPS = 1e-3  # Lai et al. 2017, arXiv 1704.03915


def l1(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean absolute difference."""
    return F.l1_loss(prediction, target)


def charbonnier(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean of ``sqrt((p - t)^2 + 1e-6)``: absolute, but smooth at zero."""
    return ((prediction - target).square() + CHARBONNIER_EPS**2).sqrt().mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"l1": l1, "charbonnier": charbonnier}


class SuperResolutionTask(Task):
    """Per-pixel loss; PSNR and SSIM on Y and on RGB, of each whole image, then averaged over each test set.

    Batches hold ``image (B, 3, H, W)`` float32 in 0..1, ``target (B, 3, S H, S W)`` likewise, ``name``; where there are
    several test sets, ``test_set (B,)``; where the data asks for bounded memory, ``tile (B,)``: the edge of the squares
    that evaluation and prediction cut images into.

    Args:
        network: images to images ``S`` times as large, with ``scale`` S.
        optimizer: see `Task`.
        schedule: see `Task`.
        loss: ``l1``, or ``charbonnier``.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: OptimizerCallable,
        schedule: ScheduleCallable,
        loss: Literal["l1", "charbonnier"] = "l1",
    ) -> None:
        if loss not in LOSSES:
            raise UserError(f"model.loss is {loss!r}: it must be one of {', '.join(LOSSES)}")
        scale = getattr(network, "scale", None)
        if not isinstance(scale, int):
            raise UserError(f"model.network: {type(network).__name__} has no integer 'scale', so it cannot upscale")
        super().__init__(network=network, optimizer=optimizer, schedule=schedule, scores=SuperResolutionScores(scale))
        self.loss = loss
        self.save_hyperparameters(ignore=["network", "optimizer", "schedule"])

    def step(self, batch: dict[str, Any]) -> Step:
        """Loss of one batch; see `Task.step`."""
        prediction, target = self._upscale(batch), batch["target"]
        return Step(
            LOSSES[self.loss](prediction.float(), target), prediction, target, len(target), batch.get("test_set")
        )

    def _upscale(self, batch: dict[str, Any]) -> Tensor:
        if self.training or "tile" not in batch:
            return self.network(batch["image"])
        return upscale_tiled(
            self.network, batch["image"], scale=cast(int, self.network.scale), tile=int(batch["tile"][0])
        )

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        """``{"name": list, "image": (B, 3, S H, S W) uint8}``: exactly S times the size of the image given."""
        pixels = self._upscale(batch).float().clamp(0, 1)
        return {"name": batch["name"], "image": (pixels * 255).round().to(torch.uint8)}
