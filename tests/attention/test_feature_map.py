"""The feature maps: values of the exponent, finite gradients where the plain formula has none, propagation of NaN."""

import math

import pytest
import torch

from nala_platform.attention.feature_map import alpha, key_features, norm, power, query_features

RANGES = [(0.5, 2.0), (1.5, 4.5)]


def test_alpha_runs_from_low_to_high():
    n = torch.tensor([0.0, 1.0, 50.0], dtype=torch.float64)[None, :, None]
    tanh = alpha(n, alpha_range=(1.5, 4.5), alpha_gate="tanh").flatten().tolist()
    sigmoid = alpha(n, alpha_range=(0.5, 2.0), alpha_gate="sigmoid").flatten().tolist()
    assert tanh == pytest.approx([1.5, 1.5 + 3 * 0.7615941559557649, 4.5], abs=1e-12)
    assert sigmoid == pytest.approx([0.5, 0.5 + 1.5 * (2 / (1 + math.exp(-1)) - 1), 2.0], abs=1e-12)


def test_alpha_takes_a_range_for_each_head():
    n = torch.full((2, 3, 4, 1), 0.7)
    low, high = torch.tensor([0.5, 1.0, 1.5]), torch.tensor([2.0, 3.0, 4.5])
    per_head = alpha(n, alpha_range=(low, high), alpha_gate="tanh")
    for head in range(3):
        alone = alpha(n[:, head], alpha_range=(low[head].item(), high[head].item()), alpha_gate="tanh")
        torch.testing.assert_close(per_head[:, head], alone)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_norm_and_exponent_are_exact_to_float32_rounding(dtype, scale):
    x = (scale * torch.randn(50, 64, generator=torch.Generator().manual_seed(0))).to(dtype)
    exact = x.double().square().sum(-1, keepdim=True).sqrt()
    ours = norm(x)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), exact, rtol=3e-7, atol=1e-12)
    exponent = alpha(ours, alpha_range=(1.5, 4.5), alpha_gate="tanh")
    torch.testing.assert_close(exponent.double(), 1.5 + 3 * exact.tanh(), rtol=1e-6, atol=0)


def test_gradient_of_the_norm_does_not_underflow():
    x = torch.full((1, 4), 1e-10, requires_grad=True)
    norm(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((1, 4), 0.5), rtol=1e-3, atol=0)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_power_at_zero_has_finite_gradients(exponent):
    base = torch.tensor([0.0, 0.25], dtype=torch.float64, requires_grad=True)
    b = torch.full((2,), exponent, dtype=torch.float64, requires_grad=True)
    value = power(base, b)
    value.sum().backward()
    assert value.tolist() == pytest.approx([0, 0.25**exponent])
    assert base.grad.tolist() == pytest.approx([0, exponent * 0.25 ** (exponent - 1)])
    assert b.grad.tolist() == pytest.approx([0, math.log(0.25) * 0.25**exponent])


@pytest.mark.parametrize("key_power", [0.5, 1.0, 3.0, 2.5])
@pytest.mark.parametrize("direction", ["split", "cosine"])
def test_keys_with_zeros_have_finite_gradients(direction, key_power):
    key = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, -2.0, -0.0]], dtype=torch.float64, requires_grad=True)
    features = key_features(key[None], key_power=key_power, direction=direction)
    features.sum().backward()
    assert features[0, 0].abs().max() == 0
    assert key.grad.isfinite().all()
    assert key.grad[0].abs().max() == 0


@pytest.mark.parametrize("alpha_range", RANGES)
@pytest.mark.parametrize("direction", ["split", "cosine"])
def test_queries_with_zeros_have_finite_gradients(direction, alpha_range):
    query = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, -2.0, -0.0]], dtype=torch.float64, requires_grad=True)
    low, high = (torch.tensor([bound], dtype=torch.float64, requires_grad=True) for bound in alpha_range)
    features = query_features(query[None], alpha_range=(low, high), alpha_gate="sigmoid", direction=direction)
    features.sum().backward()
    assert features[0, 0].abs().max() == 0
    assert query.grad[0].abs().max() == 0
    assert all(leaf.grad.isfinite().all() for leaf in (query, low, high))


@pytest.mark.parametrize("scale", [1e-2, 10.0], ids=["low end", "high end"])
@pytest.mark.parametrize("alpha_range", RANGES)
@pytest.mark.parametrize("gate", ["tanh", "sigmoid"])
@pytest.mark.parametrize("direction", ["split", "cosine"])
def test_gradcheck_of_queries_near_zero(direction, gate, alpha_range, scale):
    """Components of a thousandth of the norm, of either sign, at both ends of the alpha range."""
    random = torch.Generator().manual_seed(0)
    query = torch.randn(2, 3, 4, generator=random, dtype=torch.float64)
    query[:, 1, 0], query[:, 1, 1] = 1e-3, -1e-3
    query = (scale * query).requires_grad_()
    low, high = (torch.full((2,), bound, dtype=torch.float64, requires_grad=True) for bound in alpha_range)

    def features(query, low, high):
        return query_features(query, alpha_range=(low, high), alpha_gate=gate, direction=direction)

    assert torch.autograd.gradcheck(features, (query, low, high), eps=1e-8 * scale, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("key_power", [0.75, 1.0, 3.0])
@pytest.mark.parametrize("direction", ["split", "cosine"])
def test_gradcheck_of_keys_near_zero(direction, key_power):
    key = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    key[:, 1, 0], key[:, 1, 1], key[:, 2] = 1e-3, -1e-3, 1e-3 * key[:, 2]
    key.requires_grad_()

    def features(key):
        return key_features(key, key_power=key_power, direction=direction)

    assert torch.autograd.gradcheck(features, (key,), eps=1e-8, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("direction", ["split", "cosine"])
def test_nan_is_not_hidden(direction):
    x = torch.tensor([[[1.0, math.nan, 0.0, -1.0]]])
    assert query_features(x, alpha_range=(0.5, 2.0), alpha_gate="tanh", direction=direction).isnan().any()
    assert key_features(x, key_power=0.5, direction=direction).isnan().any()
    assert key_features(x, key_power=3.0, direction=direction).isnan().any()
