"""PSNR and SSIM against numpy and scipy, written from their definitions."""

import numpy as np
import pytest
import torch
from scipy.signal import convolve2d

from nala_platform.errors import UserError
from nala_platform.similarity import SuperResolutionScores, luma, structural_similarity


def eight_bit(image):
    return np.floor(np.clip(image.astype(np.float64), 0, 1) * 255 + 0.5)


def y_channel(rgb_3HW):
    red, green, blue = rgb_3HW / 255
    return 16 + 65.481 * red + 128.553 * green + 24.966 * blue


def psnr(one, other):
    return 10 * np.log10(255**2 / np.mean((one - other) ** 2))


def ssim(one, other):
    place = np.arange(-5, 6)
    kernel = np.exp(-(place[:, None] ** 2 + place**2) / (2 * 1.5**2))
    kernel /= kernel.sum()

    def mean(image):
        return convolve2d(image, kernel, mode="valid")

    m, n = mean(one), mean(other)
    xx, yy, xy = mean(one * one) - m * m, mean(other * other) - n * n, mean(one * other) - m * n
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    return np.mean((2 * m * n + c1) * (2 * xy + c2) / ((m * m + n * n + c1) * (xx + yy + c2)))


def oracle(prediction, target, border):
    inner = (slice(None), slice(border, -border), slice(border, -border))
    one, other = eight_bit(prediction)[inner], eight_bit(target)[inner]
    return {
        "psnr_y": psnr(y_channel(one), y_channel(other)),
        "psnr_rgb": psnr(one, other),
        "ssim_y": ssim(y_channel(one), y_channel(other)),
        "ssim_rgb": np.mean([ssim(*pair) for pair in zip(one, other, strict=True)]),
    }


def images(height, width, seed=0):
    """A prediction that leaves 0..1, and its truth."""
    draw = np.random.default_rng(seed)
    target = draw.random((3, height, width), dtype=np.float32)
    return target + 0.1 * draw.standard_normal(target.shape, dtype=np.float32), target


def scored(scores, prediction, target):
    scores.update(torch.from_numpy(prediction), torch.from_numpy(target))


@pytest.mark.parametrize(("scale", "size"), [(2, (24, 37)), (3, (33, 30)), (4, (19, 19))])
def test_all_four_equal_their_definitions(scale, size):
    """U1: Y of BT.601, border as wide as the scale; U3: clamped and rounded first."""
    prediction, target = images(*size)
    scores = SuperResolutionScores(scale)
    scored(scores, prediction[None], target[None])
    found = {name: float(value) for name, value in scores.compute().items()}
    assert found == pytest.approx(oracle(prediction, target, scale), rel=1e-9)


def test_y_of_known_colours():
    """The table of BT.601: black 16, white 235, and the three primaries."""
    colours = torch.tensor([[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255]]).T[None, :, None]
    assert luma(colours).flatten().tolist() == pytest.approx([16, 235, 81.481, 144.553, 40.966])


def test_ssim_of_flat_bright_images_is_exact():
    """In float32 the variance of a flat 254 would be rounding alone."""
    flat = torch.full((1, 1, 16, 16), 254.0)
    c1 = 2.55**2
    assert float(structural_similarity(flat, flat)) == pytest.approx(1, abs=1e-9)
    expected = (2 * 254 * 200 + c1) / (254**2 + 200**2 + c1)
    assert float(structural_similarity(flat, flat * 0 + 200)) == pytest.approx(expected, rel=1e-9)


def test_windows_inside_the_image_agree_with_torchmetrics():
    """Its own mean takes in windows over the mirrored border, so its map is cropped here."""
    from torchmetrics.functional.image import structural_similarity_index_measure

    one, other = (torch.rand(2, 3, 20, 31, dtype=torch.float64) * 255 for _ in range(2))
    _, theirs = structural_similarity_index_measure(one, other, sigma=1.5, data_range=255.0, return_full_image=True)
    torch.testing.assert_close(structural_similarity(one, other), theirs[..., 5:-5, 5:-5].mean((2, 3)))


def test_mean_of_the_images_scores_whatever_the_batch_size():
    """U2: not the logarithm of a mean error."""
    pairs = [images(20, 22, seed) for seed in range(3)]
    pairs[1] = (pairs[1][0] * 0.3, pairs[1][1])  # one far worse
    alone, together = SuperResolutionScores(2), SuperResolutionScores(2)
    for prediction, target in pairs:
        scored(alone, prediction[None], target[None])
    scored(together, *(np.stack(side) for side in zip(*pairs, strict=True)))
    expected = np.mean([oracle(*pair, 2)["psnr_y"] for pair in pairs])
    assert float(alone.compute()["psnr_y"]) == pytest.approx(expected, rel=1e-9)
    assert all(
        float(alone.compute()[name]) == pytest.approx(float(value)) for name, value in together.compute().items()
    )


def test_no_overflow_of_eight_bits():
    """U3: 255 against 0 is an error of 255, and what lies beyond 0..1 counts as its border."""
    scores = SuperResolutionScores(2)
    scores.update(torch.full((1, 3, 16, 16), 7.0), torch.full((1, 3, 16, 16), -3.0))
    assert float(scores.compute()["psnr_rgb"]) == 0
    assert float(scores.compute()["psnr_y"]) == pytest.approx(20 * np.log10(255 / 219))


def test_what_differs_in_the_border_alone_is_perfect():
    target = torch.rand(1, 3, 20, 20)
    prediction = target.clone()
    prediction[..., :4, :] = 0
    prediction[..., :, -4:] = 1
    scores = SuperResolutionScores(4)
    scores.update(prediction, target)
    assert float(scores.compute()["psnr_y"]) == float("inf")
    assert float(scores.compute()["ssim_y"]) == pytest.approx(1)


def test_the_protocol_says_how():
    for word in ("x3", "border of 3", "BT.601", "16..235", "8 bits", "11x11", "averaged"):
        assert word in SuperResolutionScores(3).protocol


def test_images_that_cannot_be_scored_are_refused():
    with pytest.raises(UserError, match="18x30 image is too small"):
        SuperResolutionScores(4).update(torch.zeros(1, 3, 18, 30), torch.zeros(1, 3, 18, 30))
    with pytest.raises(UserError, match=r"\(1, 3, 20, 22\), but the truth \(1, 3, 22, 20\)"):
        SuperResolutionScores(4).update(torch.zeros(1, 3, 20, 22), torch.zeros(1, 3, 22, 20))


def of_sets(pairs, sets, parts, alone=True):
    """Scores of single images, each of the test set that ``parts`` says."""
    scores = SuperResolutionScores(2, alone)
    scores.divide(sets)
    for (prediction, target), part in zip(pairs, parts, strict=True):
        scores.update(*(torch.from_numpy(side[None]) for side in (prediction, target)), torch.tensor([part]))
    return scores


def test_each_test_set_is_scored_by_itself():
    pairs, parts = [images(20, 22, seed) for seed in range(5)], [1, 0, 1, 1, 0]
    found = of_sets(pairs, ("set5", "b100"), parts).compute()
    for place, name in enumerate(("set5", "b100")):
        own = [oracle(*pair, 2) for pair, part in zip(pairs, parts, strict=True) if part == place]
        for key in own[0]:
            expected = np.mean([scores[key] for scores in own])
            assert float(found[f"{name}/{key}"]) == pytest.approx(expected, rel=1e-6)
    assert {key: float(found[key]) for key in own[0]} == {key: float(found[f"set5/{key}"]) for key in own[0]}
    assert len(found) == 12 and "without a name: set5" in of_sets(pairs, ("set5", "b100"), parts).protocol


def test_sets_are_independent_of_batch_size_and_of_processes():
    pairs, parts = [images(20, 22, seed) for seed in range(5)], [1, 0, 1, 1, 0]
    single = of_sets(pairs, ("a", "b"), parts)
    batched = SuperResolutionScores(2)
    batched.divide(("a", "b"))
    for chosen in ((0, 1, 2), (3, 4)):
        sides = [torch.from_numpy(np.stack([pairs[i][side] for i in chosen])) for side in (0, 1)]
        batched.update(*sides, torch.tensor([parts[i] for i in chosen]))
    shares = [of_sets(pairs[first::2], ("a", "b"), parts[first::2]) for first in (0, 1)]
    joined = SuperResolutionScores(2)
    joined.divide(("a", "b"))
    for name, reduce in joined._reductions.items():  # what torchmetrics does to the states of two processes
        setattr(joined, name, reduce(torch.stack([getattr(share, name) for share in shares])))
    joined._update_count = 1
    for other in (batched, joined):
        found = other.compute()
        assert {key: float(value) for key, value in found.items()} == pytest.approx(
            {key: float(value) for key, value in single.compute().items()}, rel=1e-12
        )


def test_a_perfect_set_leaves_the_others_and_an_empty_one_has_no_row():
    pair = images(20, 22)
    found = of_sets([(pair[1], pair[1]), pair], ("perfect", "usual", "empty"), [0, 1]).compute()
    assert float(found["perfect/psnr_y"]) == float("inf")
    assert float(found["usual/psnr_y"]) == pytest.approx(oracle(*pair, 2)["psnr_y"], rel=1e-9)
    assert not any(key.startswith("empty") for key in found)
