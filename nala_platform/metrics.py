"""Scores that a task accumulates over a whole split and computes once.

Every metric here is a `torchmetrics.Metric` whose states are sums over samples, so the result does not depend on the
batch size or on how many processes shared the split. ``compute()`` gives a flat dict of plain names to scalars.

Shapes: N samples, C classes, H W pixels.
"""

import math

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.functional.classification import multiclass_confusion_matrix


class Mean(Metric):
    """Weighted mean over all updates and processes. torchmetrics' own drops the weights where it lets NaN through."""

    full_state_update = False
    total: Tensor
    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        for state in ("total", "weight"):
            self.add_state(state, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, value: Tensor, weight: int) -> None:
        self.total += value.double() * weight
        self.weight += weight

    def compute(self) -> Tensor:
        return self.total / self.weight


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
    it is NaN and left out of the mean. Pixels with ``ignore_index`` enter nothing.

    Args:
        num_classes: C >= 2.
        ignore_index: label outside 0..C-1 of pixels that do not count, or ``None``.
        class_names: C names for the per-class rows; their indices when left out.

    Attributes:
        absent: the classes that no counted pixel has in truth, as of the last `compute`; ``None`` before.
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
        self.absent: tuple[str, ...] | None = None
        self.add_state("confusion", torch.zeros(num_classes, num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, target_NHW: Tensor) -> None:
        """Add a batch: class indices ``(N, H, W)`` or logits ``(N, C, H, W)``, and the true ``(N, H, W)`` int64."""
        predicted_NHW = prediction if prediction.ndim == 3 else prediction.argmax(dim=1)
        self.confusion += multiclass_confusion_matrix(
            predicted_NHW, target_NHW, self.num_classes, ignore_index=self.ignore_index
        )

    def compute(self) -> dict[str, Tensor]:
        """``miou``, ``pixel_accuracy``, ``mean_accuracy`` and ``iou/<class>`` (NaN when absent), float64 in [0, 1]."""
        confusion = self.confusion.double()
        right_C, true_C, predicted_C = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
        self.absent = tuple(name for name, count in zip(self.class_names, true_C.tolist(), strict=True) if count == 0)
        iou_C = right_C / (true_C + predicted_C - right_C)
        scores = {
            "miou": iou_C.nanmean(),
            "pixel_accuracy": right_C.sum() / confusion.sum(),
            "mean_accuracy": (right_C / true_C).nanmean(),
        }
        return scores | {f"iou/{name}": iou for name, iou in zip(self.class_names, iou_C, strict=True)}


class LanguageScores(Metric):
    """Mean negative log-likelihood a token, its exponential, and bits a byte of the text, over all tokens alike.

    Attributes:
        bytes_per_word: of the whole split, where its field counts perplexity by words; else None.
    """

    full_state_update = False
    protocol = (
        "every token counts once, also those of the last, shorter block and the ends of documents; perplexity: "
        "exp(nats a token); bits_per_byte: bits of all tokens over UTF-8 bytes of the text, left out where the bytes "
        "of the tokens are not known; word_perplexity: exp(nats a byte x bytes a word of the split)"
    )
    nats: Tensor
    tokens: Tensor
    bytes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.bytes_per_word: float | None = None
        self.add_state("nats", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        for state in ("tokens", "bytes"):
            self.add_state(state, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, nats_BT: Tensor, bytes_BT: Tensor) -> None:
        """Add a batch: each token's loss and bytes, -1 where it does not count; 0 for all where they are not known."""
        counted_BT = bytes_BT >= 0
        self.nats += nats_BT.double()[counted_BT].sum()
        self.tokens += counted_BT.sum()
        self.bytes += bytes_BT[counted_BT].sum()

    def compute(self) -> dict[str, Tensor]:
        """``nll`` in nats a token, ``perplexity``, and where they are known ``bits_per_byte``, ``word_perplexity``."""
        nll = self.nats / self.tokens
        found = {"nll": nll, "perplexity": nll.exp()}
        if self.bytes > 0:
            found["bits_per_byte"] = self.nats / math.log(2) / self.bytes
            if self.bytes_per_word is not None:
                found["word_perplexity"] = (self.nats / self.bytes * self.bytes_per_word).exp()
        return found


class ChoiceScores(Metric):
    """Multiple choice: the share of items whose true choice scores highest, by three scores, and its standard error.

    ``pmi``: log p(choice | context) - log p(choice | eos), which takes away that some texts are likely anywhere;
    ``norm``: log p(choice | context) a token; ``norm_byte``: a UTF-8 byte. Choices that tie for the highest score share
    the point, so one that knows nothing gets 1/C. ``<score>_stderr`` is ``sqrt(p (1 - p) / n)``.
    """

    full_state_update = False
    right: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("right", torch.zeros(3, dtype=torch.float64), dist_reduce_fx="sum")
        for state in ("count", "bytes"):
            self.add_state(state, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, given_NC: Tensor, alone_NC: Tensor, tokens: int, bytes_NC: Tensor, answer_N: Tensor) -> None:
        """Add items: log p of their choices in nats after the context and after eos, lengths, and the true choices."""
        for row, score_NC in enumerate((given_NC - alone_NC, given_NC / tokens, given_NC / bytes_NC)):
            highest_NC = (score_NC == score_NC.amax(1, keepdim=True)).double()
            self.right[row] += (highest_NC.gather(1, answer_N[:, None])[:, 0] / highest_NC.sum(1)).sum()
        self.count += len(answer_N)
        self.bytes += bytes_NC.sum()

    def compute(self) -> dict[str, Tensor]:
        """``pmi``, ``norm``, ``norm_byte`` in [0, 1], the ``_stderr`` of each; no ``norm_byte`` where no bytes are."""
        share = dict(zip(("pmi", "norm", "norm_byte"), self.right / self.count, strict=True))
        if self.bytes == 0:
            del share["norm_byte"]
        return share | {f"{name}_stderr": (p * (1 - p) / self.count).sqrt() for name, p in share.items()}
