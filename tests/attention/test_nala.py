"""NaLa's linear form against its quadratic definition, and what masks, padding, causality and dtypes promise."""

import itertools

import pytest
import torch

from nala_platform.attention import nala_attention
from nala_platform.attention.feature_map import key_features, query_features
from nala_platform.attention.plain import causal

FLAGS = list(itertools.product([False, True], repeat=3))
LOW, HIGH = torch.tensor([0.5, 1.0, 1.5]).double(), torch.tensor([2.0, 4.5, 3.0]).double()


@pytest.mark.parametrize("N", [1, 63, 65, 130])
@pytest.mark.parametrize(("use_rope", "is_causal", "use_mask"), FLAGS)
@pytest.mark.parametrize("direction", ["split", "cosine"])
@pytest.mark.parametrize("gate", ["tanh", "sigmoid"])
def test_plain_equals_reference(make_inputs, gradients, gate, direction, use_rope, is_causal, use_mask, N):
    inputs = make_inputs(N)

    def run(backend):
        def attention(query, key, value, low, high):
            return nala_attention(
                query,
                key,
                value,
                alpha_range=(low, high),
                alpha_gate=gate,
                direction=direction,
                rope=inputs.rope if use_rope else None,
                is_causal=is_causal,
                key_padding_mask=inputs.mask if use_mask else None,
                backend=backend,
            )

        return gradients(attention, inputs.query, inputs.key, inputs.value, LOW, HIGH)

    (out, grads), (expected, expected_grads) = run("plain"), run("reference")
    assert out.shape == (2, 3, N, 5)
    _assert_same(out, expected)
    for ours, theirs in zip(grads, expected_grads, strict=True):
        _assert_same(ours, theirs)


def _assert_same(ours, theirs):
    # Relative to the largest entry: where rotated scores do not vanish with the denominator, entries reach 1 / eps.
    assert theirs.isfinite().all()
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11 * max(1.0, theirs.abs().max().item()))


@pytest.mark.parametrize("use_mask", [False, True])
@pytest.mark.parametrize(("N", "M"), [(1, 9), (7, 1), (65, 130)])
def test_numbers_of_queries_and_keys_may_differ(make_inputs, gradients, N, M, use_mask):
    inputs = make_inputs(N, M=M)
    results = [
        gradients(
            lambda *qkv, backend=backend: nala_attention(
                *qkv, key_padding_mask=inputs.mask if use_mask else None, backend=backend
            ),
            *inputs[:3],
        )
        for backend in ("plain", "reference")
    ]
    for ours, theirs in zip(*((out, *grads) for out, grads in results), strict=True):
        _assert_same(ours, theirs)


@pytest.mark.parametrize("backend", ["reference", "plain"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("alpha_range", [(0.5, 2.0), (1.5, 4.5)])
@pytest.mark.parametrize("direction", ["split", "cosine"])
def test_gradcheck(steep_case, direction, alpha_range, is_causal, backend):
    attention, leaves = steep_case(alpha_range, direction=direction, is_causal=is_causal, backend=backend)
    assert torch.autograd.gradcheck(attention, leaves, eps=1e-8, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 100])
def test_causal_does_not_depend_on_the_chunk(make_inputs, gradients, chunk):
    inputs = make_inputs(33)

    def attention(query, key, value):
        phi_q = query_features(query, alpha_range=(1.5, 4.5), alpha_gate="tanh", direction="split")
        phi_k = key_features(key, key_power=3.0, direction="split")
        seen = torch.ones(2, 33, dtype=torch.float64)
        return causal(phi_q, phi_q, phi_k, phi_k, value, seen, eps=1e-6, chunk=chunk)

    out, grads = gradients(attention, *inputs[:3])
    expected, expected_grads = gradients(
        lambda *qkv: nala_attention(*qkv, is_causal=True, backend="reference"), *inputs[:3]
    )
    for ours, theirs in zip((out, *grads), (expected, *expected_grads), strict=True):
        _assert_same(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("direction", ["split", "cosine"])
def test_zero_tokens_are_finite(make_inputs, gradients, direction, dtype):
    inputs = make_inputs(5, dtype=dtype)
    inputs.query[:, :, 1], inputs.key[:, :, 2], inputs.value[:, :, 3] = 0, 0, 0
    inputs.query[:, 1], inputs.key[:, 1] = 0, 0
    out, grads = gradients(
        lambda *qkv: nala_attention(*qkv, direction=direction, alpha_range=(0.5, 2.0), alpha_gate="sigmoid"),
        *inputs[:3],
    )
    assert all(tensor.isfinite().all() for tensor in (out, *grads))
    assert out[:, :, 1].abs().max() == 0
    assert out[:, 1].abs().max() == 0


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("gate_and_range", [("tanh", (1.5, 4.5)), ("sigmoid", (0.5, 2.0))])
@pytest.mark.parametrize("direction", ["split", "cosine"])
@pytest.mark.parametrize(("q_scale", "k_scale"), list(itertools.product([1e-4, 1.0, 1e3], repeat=2)))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_at_extreme_scales(make_inputs, dtype, q_scale, k_scale, direction, gate_and_range, is_causal):
    """Finite forward and backward, and as near to float64 on the same inputs as the dtype of the output allows."""
    gate, alpha_range = gate_and_range
    inputs = make_inputs(65, D=16)
    query, key, value = (
        (scale * tensor).to(dtype).requires_grad_()
        for scale, tensor in zip((q_scale, k_scale, 1.0), inputs[:3], strict=True)
    )
    low, high = (torch.full((3,), bound, requires_grad=True) for bound in alpha_range)
    options = {"alpha_gate": gate, "direction": direction, "is_causal": is_causal}
    out = nala_attention(query, key, value, alpha_range=(low, high), **options)
    assert out.dtype == dtype
    out.float().square().sum().backward()
    for tensor in (out, query.grad, key.grad, value.grad, low.grad, high.grad):
        assert tensor.isfinite().all()

    exact = nala_attention(query.double(), key.double(), value.double(), alpha_range=alpha_range, **options)
    half_step = torch.finfo(dtype).eps / 2
    torch.testing.assert_close(out.double(), exact, rtol=1.05 * half_step, atol=2e-5)


def test_float32_is_near_float64(make_inputs):
    inputs = make_inputs(130, D=32)
    exact = nala_attention(*inputs[:3], is_causal=True)
    ours = nala_attention(*(tensor.float() for tensor in inputs[:3]), is_causal=True)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "plain"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_autocast_changes_nothing(make_inputs, gradients, is_causal, backend):
    inputs = make_inputs(33, dtype=torch.float32)

    def attention(query, key, value):
        return nala_attention(query, key, value, rope=inputs.rope, is_causal=is_causal, backend=backend)

    out, grads = gradients(attention, *inputs[:3])

    def under_autocast(query, key, value):
        with torch.autocast("cpu", torch.bfloat16):
            return attention(query, key, value)

    cast_out, cast_grads = gradients(under_autocast, *inputs[:3])
    for ours, theirs in zip((cast_out, *cast_grads), (out, *grads), strict=True):
        assert torch.equal(ours, theirs)


def test_autocast_with_bfloat16_inputs_is_the_float32_result(make_inputs):
    query, key, value = make_inputs(33, dtype=torch.bfloat16)[:3]
    with torch.autocast("cpu", torch.bfloat16):
        out = nala_attention(query, key, value)
    exact = nala_attention(query.float(), key.float(), value.float())
    assert torch.equal(out, exact.bfloat16())


def test_result_has_the_dtype_of_value(make_inputs):
    query, key, value = make_inputs(5, dtype=torch.float32)[:3]
    assert nala_attention(query, key, value.half()).dtype == torch.float16
    assert nala_attention(query.half(), key.bfloat16(), value).dtype == torch.float32
