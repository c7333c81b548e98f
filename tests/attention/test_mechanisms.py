"""What the row of a mechanism in ATTENTION promises, whichever it is."""

import inspect

import pytest
import torch

from nala_platform.attention import ATTENTION, Attention, nala_attention

MECHANISMS = pytest.mark.parametrize("name", ATTENTION)


@MECHANISMS
def test_signature_is_the_protocol(name):
    protocol = inspect.signature(Attention.__call__).parameters
    assert list(inspect.signature(ATTENTION[name]).parameters.values()) == list(protocol.values())[1:]


def test_table_names():
    assert list(ATTENTION) == ["nala", "softmax", "linear", "relu"]
    assert ATTENTION["nala"] is nala_attention


@MECHANISMS
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("N", [1, 65])
def test_plain_gradients_equal_reference(make_inputs, gradients, name, is_causal, N):
    inputs = make_inputs(N)
    results = [
        gradients(
            lambda *qkv, backend=backend: ATTENTION[name](
                *qkv, rope=inputs.rope, is_causal=is_causal, key_padding_mask=inputs.mask, backend=backend
            ),
            *inputs[:3],
        )
        for backend in ("auto", "plain", "reference")
    ]
    *ours, (expected, expected_grads) = results
    for out, grads in ours:
        for own, theirs in zip((out, *grads), (expected, *expected_grads), strict=True):
            bound = 1e-11 * max(1.0, theirs.abs().max().item())
            torch.testing.assert_close(own, theirs, rtol=1e-9, atol=bound)


@MECHANISMS
@pytest.mark.parametrize("backend", ["reference", "plain"])
@pytest.mark.parametrize("scale", [1e-4, 1e3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_at_extreme_scales(make_inputs, name, backend, dtype, scale):
    inputs = make_inputs(33, D=16)
    query, key = ((scale * x).to(dtype).requires_grad_() for x in inputs[:2])
    value = inputs.value.to(dtype).requires_grad_()
    for is_causal in (False, True):
        out = ATTENTION[name](query, key, value, is_causal=is_causal, key_padding_mask=inputs.mask, backend=backend)
        assert out.dtype == dtype
        grads = torch.autograd.grad(out.float().square().sum(), (query, key, value))
        assert all(x.isfinite().all() for x in (out, *grads))


@MECHANISMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_does_not_narrow_wide_inputs(make_inputs, name, dtype):
    inputs = make_inputs(33, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):
        inside = ATTENTION[name](*inputs[:3], rope=inputs.rope)
    assert inside.dtype == dtype
    assert torch.equal(inside, ATTENTION[name](*inputs[:3], rope=inputs.rope))


@MECHANISMS
def test_rotation_is_relative(make_inputs, name):
    """Turning every position by the same further angle changes nothing: R_i and R_j meet only as R_(i-j)."""
    inputs = make_inputs(9)
    angle = torch.atan2(inputs.rope[1], inputs.rope[0]) + 0.7
    out, turned = (
        ATTENTION[name](*inputs[:3], rope=rope, eps=1e-2) for rope in (inputs.rope, (angle.cos(), angle.sin()))
    )
    torch.testing.assert_close(turned, out, rtol=1e-9, atol=1e-9)


def test_runs_without_data(make_inputs):
    """On the meta device, which counters of parameters and operations use."""
    query, key, value = (x.to("meta") for x in make_inputs(5, dtype=torch.float32)[:3])
    for attention in ATTENTION.values():
        assert attention(query, key, value, is_causal=True).shape == (2, 3, 5, 5)
