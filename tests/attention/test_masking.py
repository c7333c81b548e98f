"""What holds for every mechanism: masks hide, padding does not matter, the future does not reach back."""

import pytest
import torch

from nala_platform.attention import ATTENTION

MECHANISMS = pytest.mark.parametrize("name", ATTENTION)
BACKENDS = pytest.mark.parametrize("backend", ["reference", "plain"])
CAUSAL = pytest.mark.parametrize("is_causal", [False, True])


@CAUSAL
@BACKENDS
@MECHANISMS
def test_masked_keys_change_nothing_and_get_no_gradient(make_inputs, gradients, name, backend, is_causal):
    inputs = make_inputs(9)

    def attention(query, key, value):
        return ATTENTION[name](
            query, key, value, is_causal=is_causal, key_padding_mask=inputs.mask, rope=inputs.rope, backend=backend
        )

    hidden = inputs.mask[:, None, :, None]
    out, (_, key_grad, value_grad) = gradients(attention, *inputs[:3])
    garbage = [torch.where(hidden, 1e4 * torch.randn_like(x), x) for x in (inputs.key, inputs.value)]
    other_out, other_grads = gradients(attention, inputs.query, *garbage)

    assert inputs.mask.any()
    torch.testing.assert_close(other_out, out, rtol=1e-12, atol=1e-12)
    for grad in (key_grad, value_grad, *other_grads[1:]):
        assert grad.masked_select(hidden).abs().max() == 0
        assert grad.masked_select(~hidden).abs().max() > 0


@CAUSAL
@BACKENDS
@MECHANISMS
def test_masked_keys_may_hold_nan(make_inputs, gradients, name, backend, is_causal):
    inputs = make_inputs(9)

    def attention(query, key, value):
        return ATTENTION[name](query, key, value, is_causal=is_causal, key_padding_mask=inputs.mask, backend=backend)

    holes = [x.masked_fill(inputs.mask[:, None, :, None], torch.nan) for x in (inputs.key, inputs.value)]
    (out, grads), (expected, expected_grads) = (
        gradients(attention, inputs.query, *pair) for pair in (holes, inputs[1:3])
    )
    for ours, theirs in zip((out, *grads), (expected, *expected_grads), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@CAUSAL
@BACKENDS
@MECHANISMS
def test_query_without_keys_gets_zero_and_finite_gradients(make_inputs, gradients, name, backend, is_causal):
    inputs = make_inputs(5)
    inputs.mask[0] = True
    out, grads = gradients(
        lambda *qkv: ATTENTION[name](*qkv, is_causal=is_causal, key_padding_mask=inputs.mask, backend=backend),
        *inputs[:3],
    )
    assert out[0].abs().max() == 0
    assert out[1].abs().max() > 0
    assert all(grad.isfinite().all() for grad in grads)
    assert all(grad[0].abs().max() == 0 for grad in grads)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("B", [1, 3])
@CAUSAL
@BACKENDS
@MECHANISMS
def test_padding_changes_nothing_at_real_tokens(make_inputs, name, backend, is_causal, B, side):
    """Also at batch 1, where some implementations skip the mask."""
    real, pad = 11, 60
    inputs = make_inputs(real, B=B)
    whole = [
        torch.cat([x, torch.randn(*x.shape[:2], pad, x.shape[3])][:: 1 if side == "right" else -1], dim=2)
        for x in inputs[:3]
    ]
    kept = slice(0, real) if side == "right" else slice(pad, pad + real)
    mask = torch.ones(B, real + pad, dtype=torch.bool)
    mask[:, kept] = False

    alone = ATTENTION[name](*inputs[:3], is_causal=is_causal, backend=backend)
    padded = ATTENTION[name](*whole, is_causal=is_causal, key_padding_mask=mask, backend=backend)
    torch.testing.assert_close(padded[:, :, kept], alone, rtol=1e-11, atol=1e-12)


@BACKENDS
@MECHANISMS
def test_the_future_does_not_reach_back(make_inputs, name, backend):
    """Not even by rounding, if a later key in the same chunk or the next is a thousand times as large."""
    inputs = make_inputs(130, dtype=torch.float32)
    past = 70
    future = [x.clone() for x in inputs[:3]]
    for x in future:
        x[:, :, past:] *= 1e3
    before, after = (
        ATTENTION[name](*qkv, is_causal=True, rope=inputs.rope, backend=backend) for qkv in (inputs[:3], future)
    )
    torch.testing.assert_close(after[:, :, :past], before[:, :, :past], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(after[:, :, past:], before[:, :, past:])
