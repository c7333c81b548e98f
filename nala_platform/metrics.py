"""Scores that a task accumulates over a whole split and computes once.

Every metric here is a `torchmetrics.Metric` whose states are sums over samples, so the result does not depend on the
batch size or on how many processes shared the split. ``compute()`` gives a flat dict of plain names to scalars.

Shapes: N samples, C classes, H W pixels.
"""

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.functional.classification import multiclass_confusion_matrix


class ClassificationScores(Metric):
    """Top-1 and top-5 accuracy over the split.

    ``top_k`` counts a sample as right when its label is among the k highest logits; ties go to the lower class index,
    as `torch.topk` gives them. With five classes or fewer, top-5 says nothing and is left out.

    Args:
        num_classes: C >= 2.
    """

    full_state_update = False
    protocol = "share of the split's images whose label is the first (top-5: among the first five) of the logits"
    top1_right: Tensor
    top5_right: Tensor
    count: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        for state in ("top1_right", "top5_right", "count"):
            self.add_state(state, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits_NC: Tensor, target_N: Tensor) -> None:
        """Add a batch: ``logits (N, C)`` float, ``target (N,)`` int64 class indices."""
        ranked_NK = logits_NC.topk(min(5, self.num_classes), dim=1).indices
        hit_NK = ranked_NK == target_N[:, None]
        self.top1_right += hit_NK[:, 0].sum()
        self.top5_right += hit_NK.any(dim=1).sum()
        self.count += target_N.numel()

    def compute(self) -> dict[str, Tensor]:
        """``{"top1": share in [0, 1], "top5": ...}`` as float64 scalars."""
        count = self.count.double()
        scores = {"top1": self.top1_right / count}
        if self.num_classes > 5:
            scores["top5"] = self.top5_right / count
        return scores


class SegmentationScores(Metric):
    """mIoU, pixel accuracy and mean accuracy from one confusion matrix over the whole split.

    With ``M[t, p]`` the number of pixels of true class t predicted as p,
    ``IoU_c = M[c,c] / (M[c,:] + M[:,c] - M[c,c])`` and ``mIoU`` its mean over the classes that occur in truth or
    prediction. A class that occurs in neither has no IoU:
    it is left out of the mean and `absent` names it. Pixels with ``ignore_index`` enter nothing.

    Args:
        num_classes: C >= 2.
        ignore_index: label outside 0..C-1 of pixels that do not count, or ``None``.
        class_names: C names for the per-class rows; their indices when left out.
    """

    full_state_update = False
    protocol = (
        "one confusion matrix over all pixels of the split but the ignored; mean over the classes that occur in truth "
        "or prediction"
    )
    confusion: Tensor

    def __init__(
        self, num_classes: int, ignore_index: int | None = 255, class_names: tuple[str, ...] | None = None
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.ignore_index = ignore_index
        self.class_names = class_names or tuple(str(index) for index in range(num_classes))
        self.add_state("confusion", torch.zeros(num_classes, num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits_NCHW: Tensor, target_NHW: Tensor) -> None:
        """Add a batch: ``logits (N, C, H, W)`` float, ``target (N, H, W)`` int64."""
        self.confusion += multiclass_confusion_matrix(
            logits_NCHW.argmax(dim=1), target_NHW, self.num_classes, ignore_index=self.ignore_index
        )

    def absent(self) -> list[str]:
        """Names of the classes that occur neither in truth nor in prediction so far (this process only)."""
        seen_C = self.confusion.sum(0) + self.confusion.sum(1) > 0
        return [name for name, seen in zip(self.class_names, seen_C.tolist(), strict=True) if not seen]

    def compute(self) -> dict[str, Tensor]:
        """``miou``, ``pixel_accuracy``, ``mean_accuracy`` and ``iou/<class>`` (NaN when absent), float64 in [0, 1]."""
        confusion = self.confusion.double()
        right_C, true_C, predicted_C = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
        iou_C = right_C / (true_C + predicted_C - right_C)
        scores = {
            "miou": iou_C.nanmean(),
            "pixel_accuracy": right_C.sum() / confusion.sum(),
            "mean_accuracy": (right_C / true_C).nanmean(),
        }
        return scores | {f"iou/{name}": iou for name, iou in zip(self.class_names, iou_C, strict=True)}
