"""Scores against plain numpy, one sample at a time."""

import numpy as np
import pytest
import torch

from nala_platform.metrics import ChoiceScores, ClassificationScores, Mean, SegmentationScores

IGNORED = 255


def numpy_scores(predicted: np.ndarray, target: np.ndarray, num_classes: int) -> dict[str, float]:
    """By definition, over lists of pixels: intersections over unions, class by class."""
    kept = target != IGNORED
    predicted, target = predicted[kept], target[kept]
    ious, recalls = [], []
    for c in range(num_classes):
        union = np.sum((predicted == c) | (target == c))
        if union:
            ious.append(np.sum((predicted == c) & (target == c)) / union)
        if np.any(target == c):
            recalls.append(np.mean(predicted[target == c] == c))
    return {"miou": np.mean(ious), "pixel_accuracy": np.mean(predicted == target), "mean_accuracy": np.mean(recalls)}


def sample(seed: int, classes: list[int], num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (7, C, 5, 9) whose argmax is right for about half of the pixels; labels from ``classes`` and ignored."""
    generator = np.random.default_rng(seed)
    target = generator.choice([*classes, IGNORED], size=(7, 5, 9))
    guess = np.where(generator.random(target.shape) < 0.5, target, generator.choice(classes, size=target.shape))
    guess = np.where(guess == IGNORED, classes[0], guess)
    logits = generator.normal(size=(7, num_classes, 5, 9)) + 20 * np.eye(num_classes)[guess].transpose(0, 3, 1, 2)
    return torch.tensor(logits, dtype=torch.float32), torch.tensor(target)


@pytest.mark.parametrize("classes", [[0, 1, 2, 3], [0, 3], [1, 2]])
def test_segmentation_scores_are_numpy_s_with_absent_classes_at_both_ends(classes: list[int]):
    logits, target = sample(0, classes, 4)
    scores = SegmentationScores(4)
    scores.update(logits, target)
    result = scores.compute()
    expected = numpy_scores(logits.argmax(1).numpy(), target.numpy(), 4)
    for name, value in expected.items():
        assert float(result[name]) == pytest.approx(value, abs=1e-12)
    assert [c for c in range(4) if torch.isnan(result[f"iou/{c}"])] == [c for c in range(4) if c not in classes]


def test_a_class_predicted_but_never_true_has_iou_zero_and_counts():
    scores = SegmentationScores(3)
    scores.update(torch.eye(3)[[0, 1, 2]].T[None, :, :, None], torch.tensor([[[0], [1], [1]]]))
    result = scores.compute()
    assert float(result["iou/2"]) == 0.0
    assert float(result["miou"]) == pytest.approx((1.0 + 0.5 + 0.0) / 3)
    assert scores.absent == ("2",)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_batch_size_changes_nothing(size: int):
    """G1."""
    logits, target = sample(1, [0, 1, 2], 3)
    whole, pieces = SegmentationScores(3), SegmentationScores(3)
    whole.update(logits, target)
    for first in range(0, 7, size):
        pieces.update(logits[first : first + size], target[first : first + size])
    assert {k: float(v) for k, v in whole.compute().items()} == {k: float(v) for k, v in pieces.compute().items()}


def test_ignored_pixels_change_nothing():
    """G2."""
    logits, target = sample(2, [0, 1, 2], 3)
    other = torch.where((target == IGNORED)[:, None], torch.randn_like(logits) * 100, logits)
    assert not torch.equal(other, logits)
    scores, changed = SegmentationScores(3), SegmentationScores(3)
    scores.update(logits, target)
    changed.update(other, target)
    assert torch.equal(scores.confusion, changed.confusion)


def test_ranks_reduce_to_the_whole():
    """G6: the states of two ranks are summed, as torchmetrics does over processes."""
    logits, target = sample(3, [0, 1, 2], 3)
    whole, first, second = SegmentationScores(3), SegmentationScores(3), SegmentationScores(3)
    whole.update(logits, target)
    first.update(logits[:4], target[:4])
    second.update(logits[4:], target[4:])
    assert first._reductions["confusion"](torch.stack([first.confusion, second.confusion])).equal(whole.confusion)


@pytest.mark.parametrize("num_classes", [3, 5, 8])
def test_top_k_is_numpy_s(num_classes: int):
    generator = np.random.default_rng(4)
    logits, target = generator.normal(size=(41, num_classes)), generator.integers(num_classes, size=41)
    order = np.argsort(-logits, axis=1)
    scores = ClassificationScores(num_classes)
    for first in range(0, 41, 6):
        scores.update(torch.tensor(logits[first : first + 6]), torch.tensor(target[first : first + 6]))
    result = scores.compute()
    assert float(result["top1"]) == pytest.approx(np.mean(order[:, 0] == target), abs=1e-12)
    if num_classes > 5:
        assert float(result["top5"]) == pytest.approx(
            np.mean([t in row[:5] for t, row in zip(target, order, strict=True)]), abs=1e-12
        )
    else:
        assert "top5" not in result


def test_tied_choices_share_the_point_and_each_score_has_its_own_winner():
    given = torch.tensor([[-10.0, -20.0, -10.0], [-9.0, -10.0, -30.0]], dtype=torch.float64)
    alone = torch.tensor([[-10.0, -25.0, -12.0], [-9.0, -10.0, -31.0]], dtype=torch.float64)
    lengths = torch.tensor([[1, 40, 10], [3, 20, 10]])
    scores = ChoiceScores()
    scores.update(given, alone, 20, lengths, torch.tensor([0, 2]))
    result = {name: float(value) for name, value in scores.compute().items()}
    # item 0: pmi takes choice 1, norm ties 0 and 2, a byte takes 1; item 1: 2, then 0, then 1
    assert (result["pmi"], result["norm"], result["norm_byte"]) == (0.5, 0.25, 0.0)
    assert result["norm_stderr"] == pytest.approx((0.25 * 0.75 / 2) ** 0.5)


def test_a_mean_counts_every_sample_and_hides_no_nan():
    mean = Mean()
    mean.update(torch.tensor(2.0), 3)
    mean.update(torch.tensor(3.0), 2)
    assert float(mean.compute()) == 12 / 5
    mean.update(torch.tensor(float("nan")), 1)
    assert mean.compute().isnan()
