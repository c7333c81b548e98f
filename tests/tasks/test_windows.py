"""Whole images, sliding windows, scales and flips (issue 7), against slow loops."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nala_platform.tasks import windows
from nala_platform.tasks.segmentation import SegmentationTask
from nala_platform.tasks.windows import Inference, segment, slide, strips, window_starts
from torch import Tensor, nn

from nala_platform.errors import UserError
from nala_platform.optim import WarmupCosine


class Local(nn.Module):
    """Logits of a convolution that sees its neighbours, so that a window's edge matters; notes what it is given."""

    num_classes = 4

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(3, 4, 5, padding=2)
        self.seen: list[tuple[int, ...]] = []

    def forward(self, image: Tensor) -> Tensor:
        self.seen.append((len(image), *image.shape[-2:]))
        return self.layer(image)


def task(network: nn.Module, **options) -> SegmentationTask:
    return SegmentationTask(network, torch.optim.AdamW, WarmupCosine, **options).eval()


def resized(image: Tensor, size: tuple[int, int], antialias: bool = False) -> Tensor:
    return F.interpolate(image, size, mode="bilinear", align_corners=False, antialias=antialias)


@pytest.mark.parametrize("length", [1, 5, 31, 32, 33, 50, 64, 97, 200])
@pytest.mark.parametrize(("crop", "stride"), [(32, 32), (32, 21), (32, 1), (33, 20), (1, 1)])
def test_windows_cover_the_image_and_end_with_it(length: int, crop: int, stride: int):
    starts = window_starts(length, crop, stride)
    seen = np.zeros(length, int)
    for first in starts:
        assert first >= 0 and (first + crop <= length or starts == [0])
        seen[first : first + crop] += 1
    assert seen.min() >= 1 and len(set(starts)) == len(starts)
    # as few as that stride allows, and at that stride but for the last
    assert len(starts) == max(0, -(-(length - crop) // stride)) + 1
    assert starts[:-1] == [i * stride for i in range(len(starts) - 1)]


@pytest.mark.parametrize("size", [(37, 50), (16, 70), (33, 9), (7, 11), (20, 20)])
@pytest.mark.parametrize(("crop", "stride"), [((20, 20), (13, 13)), ((16, 32), (16, 5)), ((20, 20), (20, 20))])
def test_overlaps_are_averaged_over_logits(size, crop, stride):
    network, image = Local(), torch.rand(2, 3, *size)
    total, count = torch.zeros(2, 4, *size), torch.zeros(size)
    with torch.no_grad():
        for y in range(0, max(size[0] - crop[0], 0) + stride[0], stride[0]):
            for x in range(0, max(size[1] - crop[1], 0) + stride[1], stride[1]):
                y0, x0 = max(0, min(y, size[0] - crop[0])), max(0, min(x, size[1] - crop[1]))
                if (y and y0 + crop[0] < size[0] and y0 != y) or (x and x0 + crop[1] < size[1] and x0 != x):
                    raise AssertionError("the loop of this test is wrong")
                total[:, :, y0 : y0 + crop[0], x0 : x0 + crop[1]] += network.layer(
                    image[:, :, y0 : y0 + crop[0], x0 : x0 + crop[1]]
                )
                count[y0 : y0 + crop[0], x0 : x0 + crop[1]] += 1
    out = slide(network, image, crop, stride)
    assert not out.requires_grad and out.dtype == torch.float32
    torch.testing.assert_close(out, total / count, atol=1e-6, rtol=1e-6)
    # one window at a time: memory is bounded by the crop
    assert all(height <= crop[0] and width <= crop[1] for _, height, width in network.seen)


@pytest.mark.parametrize("crop", [64, (48, 80), 200])
def test_a_crop_as_large_as_the_image_is_the_whole_image_to_the_bit(crop):
    from nala_platform.models.segmenter import Segmenter

    torch.manual_seed(0)
    network = Segmenter(num_classes=4).eval()
    image = torch.randn(1, 3, 48, 64)
    whole = segment(network, image, Inference(), (48, 64))
    with torch.no_grad():
        assert torch.equal(whole, network(image))
    for stride in (7, None):
        assert torch.equal(segment(network, image, Inference(crop=crop, stride=stride), (48, 64)), whole)
    smaller = segment(network, image, Inference(crop=32), (48, 64))
    assert smaller.shape == whole.shape and not torch.equal(smaller, whole)


def test_windows_of_a_network_without_neighbours_are_the_whole():
    network = nn.Conv2d(3, 5, 1)
    image = torch.rand(1, 3, 61, 47)
    torch.testing.assert_close(slide(network, image, (16, 20), (11, 7)), network(image).detach(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("size", [(30, 50), (300, 41), (61, 200), (13, 22)])
def test_strips_are_the_resized_scores(size, monkeypatch):
    monkeypatch.setattr(windows, "STRIP", 17)
    scores = torch.randn(2, 3, 30, 50)
    rows = list(strips(scores, size))
    joined = torch.cat([part for _, part in rows], dim=2)
    torch.testing.assert_close(joined, resized(scores, size), atol=1e-5, rtol=1e-5)  # of places in float32
    assert [row.start for row, _ in rows] == list(range(0, size[0], 17)) and rows[-1][0].stop == size[0]
    assert size != (30, 50) or torch.equal(joined, scores)


@pytest.mark.parametrize("scales", [(1.0,), (0.5, 1.0, 1.75)])
@pytest.mark.parametrize("flips", ["none", "horizontal"])
@pytest.mark.parametrize(("crop", "short_side"), [(None, None), (24, 33)])
def test_views_are_averaged_over_probabilities(scales, flips, crop, short_side):
    network, image, size = Local(), torch.rand(1, 3, 41, 57), (60, 83)
    inference = Inference(crop=crop, stride=crop and 10, short_side=short_side, scales=scales, flips=flips)
    views = []
    for scale in scales:
        factor = scale * (short_side / 41 if short_side else 1.0)
        seen = (round(41 * factor), round(57 * factor))
        shown = image if seen == (41, 57) else resized(image, seen, antialias=True)
        for mirrored in (False, True)[: 1 + (flips == "horizontal")]:
            part = shown.flip(3) if mirrored else shown
            with torch.no_grad():
                logits = slide(network, part, (24, 24), (10, 10)) if crop else network.layer(part)
            views.append(resized(logits.flip(3) if mirrored else logits, size).softmax(1))
    out = torch.cat([part for _, part in strips(segment(network, image, inference, size), size)], dim=2)
    torch.testing.assert_close(out.softmax(1), torch.stack(views).mean(0), atol=1e-6, rtol=1e-5)


def test_a_mirrored_picture_has_the_mirrored_prediction():
    network, image = Local(), torch.rand(1, 3, 20, 31)
    inference = Inference(flips="horizontal", scales=(0.75, 1.0))
    one, other = (segment(network, x, inference, (20, 31)) for x in (image, image.flip(3)))
    torch.testing.assert_close(one, other.flip(3), atol=1e-5, rtol=1e-5)


def numpy_miou(pairs: list[tuple[np.ndarray, np.ndarray]], classes: int) -> tuple[float, list[int]]:
    """By definition, class by class, over lists of pixels; the classes that occur in neither."""
    predicted, true = (np.concatenate([pair[place].ravel() for pair in pairs]) for place in (0, 1))
    predicted, true = predicted[true != 255], true[true != 255]
    ious = {
        c: np.sum((predicted == c) & (true == c)) / np.sum((predicted == c) | (true == c))
        for c in range(classes)
        if np.any(predicted == c) or np.any(true == c)
    }
    return float(np.mean(list(ious.values()))), [c for c in range(classes) if c not in ious]


@pytest.mark.parametrize(
    "inference", [Inference(), Inference(crop=16, stride=9, short_side=24, scales=(0.75, 1.0), flips="horizontal")]
)
@pytest.mark.parametrize("present", [(0, 3), (1, 2), (0, 1, 2, 3)])
def test_scores_and_loss_are_numpy_s_at_the_labels_own_size(inference, present):
    """Classes at both ends, absent ones, ignored pixels; images of several sizes."""
    network = Local()
    with torch.no_grad():
        network.layer.weight *= 6
        network.layer.bias.fill_(-40.0)
        network.layer.bias[list(present)] = 0.0  # no other class is ever predicted
    model, generator = task(network, inference=inference), np.random.default_rng(0)
    pairs, nll = [], []
    for size in ((23, 40), (40, 23), (11, 13)):
        target = torch.tensor(generator.choice([*present, 255], size=size))[None]
        image = torch.rand(1, 3, *size)
        step = model.step({"image": image, "target": target})
        scores = segment(network, image, inference, size)
        logits = torch.cat([part for _, part in strips(scores, size)], dim=2).double()
        logs = (logits - logits.logsumexp(1, keepdim=True))[0].numpy()
        truth = target[0].numpy()
        pairs.append((logits[0].argmax(0).numpy(), truth))
        nll += [-logs[truth[y, x], y, x] for y, x in zip(*np.nonzero(truth != 255), strict=True)]
        assert step.prediction.shape == target.shape and step.count == (truth != 255).sum()
        model.scores["val"].update(step.prediction, step.target)
        model.losses["val"].update(step.loss, step.count)
    result = model.scores["val"].compute()
    miou, absent = numpy_miou(pairs, 4)
    assert float(result["miou"]) == pytest.approx(miou, abs=1e-6)
    assert [c for c in range(4) if torch.isnan(result[f"iou/{c}"])] == absent == sorted({0, 1, 2, 3} - set(present))
    assert float(model.losses["val"].compute()) == pytest.approx(np.mean(nll), rel=1e-5)
    model.scores["val"].reset()
    assert model.protocol()["classes without a true pixel"] == {"val": [str(c) for c in absent]}


def test_what_lies_under_ignored_pixels_changes_no_score_of_windows():
    """G2."""
    model = task(Local(), inference=Inference(crop=12, stride=8))
    image, target = torch.rand(1, 3, 20, 30), torch.randint(0, 4, (1, 20, 30))
    target[0, :, :15] = 255
    other = image.clone()
    other[..., :10] = torch.rand(3, 20, 10)  # further from the counted pixels than the network sees
    steps = [model.step({"image": picture, "target": target}) for picture in (image, other)]
    for step in steps:
        model.scores["val"].update(step.prediction, step.target)
        assert float(step.loss) == pytest.approx(float(steps[0].loss))
    assert model.scores["val"].confusion.sum() == 2 * 20 * 15
    assert (model.scores["val"].confusion % 2 == 0).all()


def test_prediction_has_the_size_of_the_picture_and_the_same_windows():
    network = Local()
    model = task(network, inference=Inference(crop=16, stride=11, short_side=40))
    image = torch.rand(1, 3, 30, 51)
    target = torch.zeros(1, 30, 51, dtype=torch.int64)
    judged, judged_at = model.step({"image": image, "target": target}).prediction, network.seen.copy()
    network.seen.clear()
    mask = model.predict({"image": image, "name": ["a"]})["mask"]
    assert mask.shape == (1, 30, 51) and torch.equal(mask, judged) and network.seen == judged_at
    assert set(network.seen) == {(1, 16, 16)}
    network.seen.clear()
    model.train().step({"image": image, "target": target})
    assert network.seen == [(1, 30, 51)]  # training sees its crops as they are


def test_the_protocol_says_it():
    said = task(Local(), inference=Inference(crop=(512, 1024), stride=(341, 683))).protocol()["inference"]
    assert said == (
        "windows of 512x1024 every 341x683, logits of overlaps averaged; own size; "
        "resized to the labels' size, bilinear"
    )
    said = str(Inference(short_side=512, scales=(0.5, 1.0), flips="horizontal"))
    assert said == (
        "whole image; shorter side resized to 512, bilinear; probabilities averaged over scales 0.5, 1, flips "
        "horizontal; resized to the labels' size, bilinear"
    )
    assert Inference(crop=512).steps == (341, 341)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"stride": 4}, "stride is given without a crop"),
        ({"crop": 0}, "crop is 0"),
        ({"crop": 8, "stride": 9}, "stride 9 is larger than the crop 8"),
        ({"crop": (8, 16), "stride": 9}, "larger than the crop"),
        ({"short_side": -1}, "short_side is -1"),
        ({"scales": ()}, "scales"),
        ({"scales": (0.0,)}, "scales"),
        ({"flips": "both"}, "flips"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, word: str):
    with pytest.raises(UserError, match=word):
        Inference(**options)
