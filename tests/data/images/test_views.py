"""Random views: image and mask move together."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import max_pool2d

from nala_platform.data.images.views import Normalisation, View, distorted, random_view
from nala_platform.errors import UserError

PLAIN = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), ignore_index=255)


def marked(height, width):
    """A picture whose red channel, divided by 50, is its mask: five bands and a corner marker."""
    mask = np.zeros((height, width), np.int64)
    mask[:, width // 2 :] = 2
    mask[height // 2 :] += 1
    mask[: height // 4, : width // 4] = 5
    image = np.repeat((mask * 50).astype(np.uint8)[..., None], 3, axis=2)
    return Image.fromarray(image), mask


@pytest.mark.parametrize("size", [(30, 50), (33, 33), (64, 47), (5, 200)])
@pytest.mark.parametrize("crop", [32, (48, 30), (1, 7)])
def test_flips_and_crops_move_image_and_mask_alike(size, crop):
    image, mask = marked(*size)
    view = View(crop=crop, scale=(1.0, 1.0), hflip=0.5, vflip=0.5)
    seen = set()
    for seed in range(40):
        pixels, target = random_view(image, mask, view, PLAIN, seed)
        assert pixels.shape == (3, *view.size) and target.shape == view.size and target.dtype == torch.int64
        ignored = target == 255
        assert torch.equal((pixels[0] * 255 / 50).round().long()[~ignored], target[~ignored])
        assert not pixels[:, ignored].any()
        assert (~ignored).sum() == min(size[0], view.size[0]) * min(size[1], view.size[1])
        seen.add(target.numpy().tobytes())
    assert len(seen) > 1


def test_marker_pixel_is_in_each_of_the_four_corners():
    mask = np.zeros((6, 9), np.int64)
    mask[0, 0] = 1
    image = Image.fromarray((mask * 255).astype(np.uint8)).convert("RGB")
    view = View(crop=(6, 9), scale=(1.0, 1.0), hflip=0.5, vflip=0.5)
    places = set()
    for seed in range(60):
        pixels, target = random_view(image, mask, view, PLAIN, seed)
        assert torch.equal(pixels[1] > 0.5, target == 1)
        places.add(tuple(torch.nonzero(target)[0].tolist()))
    assert places == {(0, 0), (0, 8), (5, 0), (5, 8)}


@pytest.mark.parametrize("factor", [0.5, 0.83, 1.7, 2.0])
def test_scaling_keeps_image_and_mask_together(factor):
    image, mask = marked(60, 84)
    view = View(crop=(40, 40), scale=(factor, factor), hflip=0.0)
    for seed in range(5):
        pixels, target = random_view(image, mask, view, PLAIN, seed)
        # away from edges, where the bilinear filter mixes two labels, the colour is the label's
        near = target[None].float()
        clean = max_pool2d(near, 3, 1, 1)[0] == -max_pool2d(-near, 3, 1, 1)[0]
        clean &= target != 255
        assert clean.float().mean() > 0.4
        assert torch.equal((pixels[0] * 255 / 50)[clean].round().long(), target[clean])


def test_crop_of_a_resized_picture_is_cut_from_the_whole_resized_picture():
    rows = np.linspace(0, 255, 64).astype(np.uint8)
    image = Image.fromarray(np.add.outer(rows // 2, rows // 2)).convert("RGB")
    mask = np.arange(64 * 64).reshape(64, 64) % 200
    view = View(crop=32, scale=(2.0, 2.0), hflip=0.0)
    pixels, target = random_view(image, mask, view, PLAIN, seed=3)
    whole_image = np.asarray(image.resize((128, 128), Image.Resampling.BILINEAR)).astype(float)
    whole_mask = np.asarray(Image.fromarray(mask.astype(np.uint8)).resize((128, 128), Image.Resampling.NEAREST))
    places = [
        (top, left)
        for top in range(97)
        for left in range(97)
        if (whole_mask[top : top + 32, left : left + 32] == target.numpy()).all()
    ]
    assert any(
        np.abs(whole_image[top : top + 32, left : left + 32, 0] - pixels[0].numpy() * 255).max() <= 1
        for top, left in places
    )


def test_a_view_is_a_function_of_its_seed_and_leaves_the_generators_alone():
    image, mask = marked(40, 40)
    view = View(crop=24, color_jitter=0.4)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = random_view(image, mask, view, PLAIN, 7)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    again, other = random_view(image, mask, view, PLAIN, 7), random_view(image, mask, view, PLAIN, 8)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_padding_is_the_mean_colour_and_the_ignored_label():
    image, mask = marked(10, 10)
    fill = Normalisation((0.5, 0.4, 0.3), (0.2, 0.2, 0.2), ignore_index=-100)
    pixels, target = random_view(image, mask, View(crop=16, scale=(1, 1), hflip=0), fill, 0)
    assert (target[10:] == -100).all() and (target[:, 10:] == -100).all() and (target[:10, :10] >= 0).all()
    assert not pixels[:, 10:].any()


def test_the_scale_acts_on_a_shorter_side_that_is_asked_for():
    image, mask = marked(60, 84)
    for crop, scale in (((30, 42), 1.0), ((60, 84), 2.0)):
        _, target = random_view(image, mask, View(crop=crop, scale=(scale, scale), hflip=0, short_side=30), PLAIN, 0)
        half = Image.fromarray(mask.astype(np.uint8)).resize(crop[::-1], Image.Resampling.NEAREST)
        assert (target.numpy() == np.asarray(half)).all()


def test_a_crop_that_one_class_fills_is_drawn_again():
    mask = np.zeros((40, 40), np.int64)
    mask[12:20, 12:20] = 1
    mask[30:] = 255
    image = Image.fromarray(np.zeros((40, 40, 3), np.uint8))

    def is_mixed(target):
        ones, counted = np.sum(target == 1), np.sum(target != 255)
        return bool(counted) and 0.25 * counted < ones < 0.75 * counted

    def share(ratio):
        view = View(crop=10, scale=(1.0, 1.0), hflip=0.0, cat_max_ratio=ratio)
        return np.mean([is_mixed(random_view(image, mask, view, PLAIN, seed)[1].numpy()) for seed in range(400)])

    chance = np.mean([is_mixed(mask[y : y + 10, x : x + 10]) for y in range(31) for x in range(31)])
    assert 0.05 < chance < 0.3
    assert share(1.0) == pytest.approx(chance, abs=0.06)
    # ten tries find one with chance 1 - (1 - p)^10
    assert share(0.75) == pytest.approx(1 - (1 - chance) ** 10, abs=0.06)


class Scripted:
    """Draws what it is told: whether contrast comes first, then a share of each range and whether it is used."""

    def __init__(self, first, *shares):
        self.flags = [0.0 if first else 1.0, *(1.0 if share is None else 0.0 for share in shares)]
        self.shares = [0.5 if share is None else share for share in shares]

    def random(self):
        return self.flags.pop(0)

    def uniform(self, low, high):
        return low + (high - low) * self.shares.pop(0)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((None, None, None, None), lambda x: x),
        ((0.75, None, None, None), lambda x: np.clip(x + 16.0, 0, 255)),
        ((0.0, None, None, None), lambda x: np.clip(x - 32.0, 0, 255)),
        ((None, 0.9, None, None), lambda x: np.clip(x * 1.4, 0, 255)),
        ((0.0, 0.0, None, None), lambda x: np.clip(x - 32.0, 0, 255) * 0.5),
    ],
)
def test_brightness_and_contrast_are_their_formulas(noise, first, shares, expected):
    pixels = noise(9, 11)
    found = distorted(pixels, 0.5, Scripted(first, *shares))
    assert found.dtype == np.uint8 and np.abs(found - expected(pixels.astype(float))).max() <= 0.51


@pytest.mark.parametrize(("vivid", "turn"), [(0.0, None), (1.0, None), (None, 0.0), (None, 1.0), (0.2, 0.8)])
def test_saturation_and_hue_are_those_of_hsv(noise, vivid, turn):
    import colorsys

    pixels = noise(6, 7)
    found = distorted(pixels, 0.5, Scripted(True, None, None, vivid, turn))
    expected = []
    for pixel in pixels.reshape(-1, 3) / 255:
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        hue += 0.0 if turn is None else -0.1 + 0.2 * turn
        saturation = min(1.0, saturation * (1.0 if vivid is None else 0.5 + vivid))
        expected.append(colorsys.hsv_to_rgb(hue % 1, saturation, value))
    # Pillow's HSV has 8 bits: a step of the hue is up to 6 of 255
    assert np.abs(found.reshape(-1, 3) - np.array(expected) * 255).max() < 8


def test_distortion_leaves_the_labels_and_uses_each_change_at_its_rate():
    image, mask = marked(24, 24)
    plain, view = (View(crop=24, scale=(1, 1), hflip=0, distortion=chance) for chance in (0.0, 0.5))
    seen = [random_view(image, mask, view, PLAIN, seed) for seed in range(60)]
    still = random_view(image, mask, plain, PLAIN, 0)
    assert all(torch.equal(target, still[1]) for _, target in seen)
    same = np.mean([torch.equal(pixels, still[0]) for pixels, _ in seen])
    assert same == pytest.approx(1 / 4, abs=0.15)  # grey: neither saturation nor hue shows, the other two at 1/2 each


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"hflip": 1.5}, ".hflip"),
        ({"crop": 0}, ".crop"),
        ({"scale": (2.0, 0.5)}, ".scale"),
        ({"color_jitter": -1.0}, ".color_jitter"),
        ({"distortion": 1.5}, ".distortion"),
        ({"distortion": 0.5, "color_jitter": 0.4}, ": color_jitter and distortion"),
        ({"short_side": 0}, ".short_side"),
        ({"cat_max_ratio": 0.0}, ".cat_max_ratio"),
    ],
)
def test_settings_out_of_range_are_named(options, word):
    with pytest.raises(UserError, match=f"data.augment{word}"):
        View(**options)
