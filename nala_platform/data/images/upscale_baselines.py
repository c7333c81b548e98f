"""What methods without a network reach in super-resolution.

Shapes: H W pixels of the small picture, S scale, N pixels, K = 49 weights of a filter, and a constant.
"""

from collections.abc import Iterable

import numpy as np
import torch
from PIL import Image
from threadpoolctl import threadpool_limits

from nala_platform.data.images.pairs import Pair, pixels, shrunk
from nala_platform.similarity import SuperResolutionScores

REACH = 3  # pixels each way that the linear filter sees: 7x7


def upscale_baselines(
    train: Iterable[Image.Image], test: Iterable[Image.Image], scale: int
) -> dict[str, dict[str, float]]:
    """Scores on the large pictures ``test`` of Pillow's bicubic enlargement and of the best 7x7 linear filter.

    The filter predicts each of the S x S pixels that one pixel becomes from its 7x7 neighbourhood, with weights that
    minimise the squared error over ``train`` (normal equations), the same for all three channels.
    """
    # products this narrow spend their time waiting for each other's threads: 0.7 s on one, 8 s on two
    with threadpool_limits(1):
        filter_KF = fit_filter(train, scale)
    scores = {name: SuperResolutionScores(scale, alone=True) for name in ("bicubic", "linear 7x7 filter")}
    for large in test:
        small = shrunk(large, scale)
        enlarged = pixels(small.resize(large.size, Image.Resampling.BICUBIC))
        filtered = torch.from_numpy(apply_filter(filter_KF, small, scale)).permute(2, 0, 1)
        for name, prediction in (("bicubic", enlarged), ("linear 7x7 filter", filtered)):
            scores[name].update(prediction[None], pixels(large)[None])
    return {name: {key: float(value) for key, value in score.compute().items()} for name, score in scores.items()}


def bicubic_baseline(pairs: Iterable[Pair], scale: int, sets: tuple[str, ...] = ()) -> dict[str, float]:
    """Scores of Pillow's bicubic enlargement of the small pictures, read or made, in 8 bits.

    Args:
        pairs: large pictures cropped to multiples of S.
        scale: S.
        sets: names of the test sets that the pairs are of, if of several; see `SuperResolutionScores`.
    """
    scores = SuperResolutionScores(scale, alone=True)
    scores.divide(sets)
    for _, large, small, part in pairs:
        enlarged = (small or shrunk(large, scale)).resize(large.size, Image.Resampling.BICUBIC)
        scores.update(pixels(enlarged)[None], pixels(large)[None], None if part is None else torch.tensor([part]))
    return {key: float(value) for key, value in scores.compute().items()}


def fit_filter(train: Iterable[Image.Image], scale: int) -> np.ndarray:
    """Weights ``(K + 1, S * S)``, float64, of the least-squares filter; the last row is a constant."""
    size = (2 * REACH + 1) ** 2 + 1
    left_KK, right_KF = np.zeros((size, size)), np.zeros((size, scale**2))
    for large in train:
        small = shrunk(large, scale)
        large_HSWS3 = np.asarray(large).reshape(small.height, scale, small.width, scale, 3) / 255
        for channel in range(3):
            near_NK = _neighbourhoods(small, channel)
            target_NF = large_HSWS3[..., channel].transpose(0, 2, 1, 3).reshape(len(near_NK), -1)
            left_KK += near_NK.T @ near_NK
            right_KF += near_NK.T @ target_NF
    return np.linalg.lstsq(left_KK, right_KF, rcond=None)[0]


def apply_filter(filter_KF: np.ndarray, small: Image.Image, scale: int) -> np.ndarray:
    """The enlarged picture ``(S H, S W, 3)`` float64 on the scale 0..1, not clipped."""
    channels = []
    for channel in range(3):
        enlarged_HWSS = (_neighbourhoods(small, channel) @ filter_KF).reshape(small.height, small.width, scale, scale)
        channels.append(enlarged_HWSS.transpose(0, 2, 1, 3).reshape(scale * small.height, scale * small.width))
    return np.stack(channels, axis=-1)


def _neighbourhoods(small: Image.Image, channel: int) -> np.ndarray:
    """``(N, K + 1)``: the 7x7 pixels around each, the border repeated, on the scale 0..1, and a one."""
    padded_HW = np.pad(np.asarray(small)[..., channel] / 255, REACH, mode="edge")
    edge = 2 * REACH + 1
    near_NK = np.lib.stride_tricks.sliding_window_view(padded_HW, (edge, edge)).reshape(-1, edge**2)
    return np.concatenate([near_NK, np.ones((len(near_NK), 1))], axis=1)
