"""What trivial methods reach on the embedded data, to be printed beside a result.

Shapes: N samples or pixels, F features, C classes.
"""

from functools import cache

import numpy as np
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from nala_platform.data.images.samples import IGNORED, bluemarble, digits

SAMPLED_PIXELS = 50_000


@cache
def digits_baselines() -> dict[str, dict[str, float]]:
    """Top-1 on the test part of the commonest training class and of logistic regression on the 8x8 originals."""
    train, test = digits()["train"], digits()["test"]
    commonest = np.bincount(train.target_N).argmax()
    predicted_N = _logistic(train.native_ND, train.target_N, test.native_ND)
    return {
        "majority class": {"top1": float((test.target_N == commonest).mean())},
        "logistic regression": {"top1": float((test.target_N == predicted_N).mean())},
    }


@cache
def bluemarble_baselines() -> dict[str, dict[str, float]]:
    """mIoU on the test part of the commonest training class and of logistic regression on the colour of a pixel.

    The regression is fitted to 50000 training pixels, drawn with seed 0, of tiles that do not overlap.
    """
    parts = bluemarble(stride=64)
    (colour_N3, class_N), (test_N3, truth_N) = (
        (parts[part].image_NHW3.reshape(-1, 3), parts[part].target_NHW.ravel()) for part in ("train", "test")
    )
    colour_N3, class_N = colour_N3[class_N != IGNORED], class_N[class_N != IGNORED]
    sample = np.random.default_rng(0).choice(len(class_N), SAMPLED_PIXELS, replace=False)
    # the picture has far fewer colours than pixels, and a colour has one prediction
    packed_N = (test_N3.astype(np.uint32) << (16, 8, 0)).sum(1, dtype=np.uint32)
    colours_N, inverse_N = np.unique(packed_N, return_inverse=True)
    colours_N3 = np.stack([colours_N >> 16, colours_N >> 8 & 255, colours_N & 255], axis=1)
    predicted_N = _logistic(colour_N3[sample] / 255, class_N[sample], colours_N3 / 255)[inverse_N]
    commonest_N = np.full_like(truth_N, np.bincount(class_N).argmax())
    return {
        "majority class": {"miou": mean_iou(commonest_N, truth_N, 3)},
        "logistic regression": {"miou": mean_iou(predicted_N, truth_N, 3)},
    }


def mean_iou(predicted_N: np.ndarray, truth_N: np.ndarray, num_classes: int) -> float:
    """Mean of ``IoU_c = M[c,c] / (M[c,:] + M[:,c] - M[c,c])``, M the confusion matrix over all pixels but the ignored.

    A class in neither prediction nor truth is left out.

    Examples:
        >>> mean_iou(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 255]), 3)
        0.5
    """
    counted = truth_N != IGNORED
    pair_N = truth_N[counted].astype(np.int64) * num_classes + predicted_N[counted]
    confusion_CC = np.bincount(pair_N, minlength=num_classes**2).reshape(num_classes, num_classes)
    right_C = confusion_CC.diagonal()
    union_C = confusion_CC.sum(0) + confusion_CC.sum(1) - right_C
    return float((right_C[union_C > 0] / union_C[union_C > 0]).mean())


def _logistic(train_NF: np.ndarray, class_N: np.ndarray, test_NF: np.ndarray) -> np.ndarray:
    # problems this small spend their time waiting for each other's threads: 0.02 s on one, seconds on two
    with threadpool_limits(1):
        return LogisticRegression(max_iter=1000).fit(train_NF, class_N).predict(test_NF)
