"""The upscaler: sizes, exact output, every pixel seen, the swap of the attention."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from nala_platform.attention import ATTENTION
from nala_platform.errors import UserError
from nala_platform.models.upscaler import SIZES, Upscaler, bicubic
from nala_platform.optim import parameter_groups


def awake(network: Upscaler) -> Upscaler:
    """With a last convolution that is not zero."""
    torch.manual_seed(0)
    torch.nn.init.normal_(network.to_pixels.weight, std=0.1)
    return network.eval()


@pytest.mark.parametrize("scale", [2, 3, 4])
@pytest.mark.parametrize("size", [(1, 1), (5, 3), (30, 50), (33, 33), (32, 32)])
def test_the_output_is_exactly_scale_times_the_input(scale, size):
    """U5: an aligned size too."""
    out = awake(Upscaler(scale=scale))(torch.rand(2, 3, *size))
    assert out.shape == (2, 3, scale * size[0], scale * size[1])
    assert torch.isfinite(out).all() and out.dtype == torch.float32


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_untrained_it_is_pillows_bicubic(scale):
    image = np.random.default_rng(0).random((13, 17)).astype(np.float32)
    theirs = Image.fromarray(image).resize((17 * scale, 13 * scale), Image.Resampling.BICUBIC)
    stacked = torch.from_numpy(image).expand(1, 3, -1, -1)
    expected = torch.from_numpy(np.array(theirs)).expand(1, 3, -1, -1)
    torch.testing.assert_close(bicubic(stacked, scale), expected, atol=3e-6, rtol=0)
    torch.testing.assert_close(Upscaler(scale=scale)(stacked), expected, atol=3e-6, rtol=0)


def phases(image_BCHW: torch.Tensor, scale: int) -> torch.Tensor:
    """(S, S): mean over everything else of the pixels at each place of the sub-pixel grid."""
    return image_BCHW.unflatten(-2, (-1, scale)).unflatten(-1, (-1, scale)).mean((0, 1, 2, 4))


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_the_pixel_shuffle_starts_without_a_checkerboard(scale):
    """As ICNR asks: the kernels of one position's S x S pixels are equal, so grey stays grey, and noise on average."""
    torch.manual_seed(0)
    network = Upscaler(scale=scale)
    kernels = network.to_pixels.weight.unflatten(0, (3, scale**2))
    assert torch.equal(kernels, kernels[:, :1].expand_as(kernels))
    grey = network(torch.full((1, 3, 12, 12), 0.3))
    torch.testing.assert_close(grey, torch.full_like(grey, 0.3), atol=1e-6, rtol=0)
    noise = network(torch.rand(4, 3, 40, 40))
    spread = phases(noise, scale) - phases(noise, scale).mean()
    assert spread.abs().max() < 0.2 / 255


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_the_measure_of_a_checkerboard_sees_one(scale):
    """The same pixels from kernels that start apart, as torch's own initialisation would have them."""
    torch.manual_seed(0)
    network = Upscaler(scale=scale)
    network.to_pixels.reset_parameters()
    spread = phases(network(torch.full((1, 3, 12, 12), 0.3)), scale)
    assert (spread - spread.mean()).abs().max() > 2 / 255


@pytest.mark.parametrize("name", list(ATTENTION))
def test_every_pixel_of_the_input_matters_to_every_pixel_of_the_output(name):
    """No windows: the corner of the output depends on the opposite corner, which no convolution here reaches."""
    network = awake(Upscaler(attention=name)).double()
    image = torch.rand(1, 3, 40, 45, dtype=torch.float64)
    network.to_pixels.weight.data = network.to_pixels.weight.data.double()
    changed = image.clone()
    changed[..., -1, -1] += 0.5

    def detail(x):  # the bicubic part in float32 does not reach that far, but rounds
        return (network(x) - bicubic(x, 2))[..., 0, 0]

    assert (detail(image) - detail(changed)).abs().max() > 1e-12


def test_the_mechanism_changes_no_parameter():
    states = [{name: value.shape for name, value in Upscaler(attention=a).state_dict().items()} for a in ATTENTION]
    assert all(state == states[0] for state in states)


@pytest.mark.parametrize(
    ("size", "least", "most"), [("nano", 0.06e6, 0.08e6), ("light", 0.85e6, 0.95e6), ("base", 8e6, 9e6)]
)
def test_sizes(size, least, most):
    for scale in (2, 3, 4):
        assert least < sum(p.numel() for p in Upscaler(size, scale).parameters()) < most
    assert set(SIZES) == {"nano", "light", "base"}


def test_gradients_reach_every_parameter():
    network = awake(Upscaler(learn_alpha=True)).train()
    network(torch.rand(1, 3, 7, 9)).square().mean().backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_checkpointing_changes_neither_values_nor_gradients():
    plain, saving = awake(Upscaler()), awake(Upscaler(grad_checkpointing=True))
    saving.load_state_dict(plain.state_dict())
    image = torch.rand(1, 3, 6, 8)
    grads = []
    for network in (plain.train(), saving.train()):
        network(image).square().mean().backward()
        grads.append([p.grad for p in network.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def test_half_precision_adds_the_detail_to_a_full_precision_enlargement():
    image = torch.rand(1, 3, 9, 9)
    with torch.autocast("cpu", torch.bfloat16):
        out = Upscaler()(image)
    torch.testing.assert_close(out, bicubic(image, 2))


def test_scales_and_learned_exponents_are_not_decayed():
    network = Upscaler(learn_alpha=True)
    [_, undecayed] = parameter_groups(network)
    ids = {id(p) for p in undecayed["params"]}
    names = {name for name, p in network.named_parameters() if id(p) in ids}
    assert {"blocks.0.gamma_1", "blocks.3.attn.alpha.low"} <= names and "blocks.0.attn.qkvg.weight" not in names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 5}, "scale is 5: it must be one of 2, 3, 4"),
        ({"size": "nanno"}, "did you mean 'nano'"),
        ({"attention": "softmaxx"}, "did you mean 'softmax'"),
        ({"attention": "softmax", "learn_alpha": True}, "learn_alpha needs attention 'nala'"),
        ({"alpha_range": (4.0, 1.0)}, "low < high"),
        ({"in_chans": 0}, "in_chans is 0: it must be 1 or more"),
        ({"drop_path_rate": -0.5}, r"drop_path_rate is -0.5: it must be in \[0, 1\)"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        Upscaler(**options)


@pytest.mark.slow
def test_four_times_512x512_pixels_fit_in_six_gib():
    """A process of its own, whose peak is that of this one enlargement: 262,144 tokens in each attention."""
    code = (
        "import resource, torch; from nala_platform.models.upscaler import Upscaler\n"
        "network = Upscaler('light', 4).eval()\n"
        "with torch.inference_mode(): out = network(torch.rand(1, 3, 512, 512))\n"
        "print(*out.shape, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    *shape, peak = map(int, printed.split())
    assert shape == [1, 3, 2048, 2048]
    print(f"peak {peak / 2**30:.2f} GiB")
    assert peak < 6 * 2**30
