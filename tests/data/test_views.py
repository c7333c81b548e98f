"""Random views: image and mask move together."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import max_pool2d

from nala_platform.data.views import Normalisation, View, random_view
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


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"hflip": 1.5}, "hflip"),
        ({"crop": 0}, "crop"),
        ({"scale": (2.0, 0.5)}, "scale"),
        ({"color_jitter": -1.0}, "color_jitter"),
    ],
)
def test_settings_out_of_range_are_named(options, word):
    with pytest.raises(UserError, match=f"data.augment.{word}"):
        View(**options)
