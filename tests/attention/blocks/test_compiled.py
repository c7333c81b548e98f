"""The compiled blocks against the others. Generating code takes a minute, so only the refusal is a quick test."""

import shutil
from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from nala_platform.attention import nala_attention
from nala_platform.attention.blocks import compiled
from nala_platform.errors import UserError


def test_without_a_compiler_it_says_so(make_inputs, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match=r"needs a C\+\+ compiler.*backend='chunked' needs none"):
        nala_attention(*make_inputs(5)[:3], backend="compiled")


def compare(gradients, inputs, *, direction, is_causal):
    results = []
    for backend in ("compiled", "reference"):
        out, grads = gradients(
            lambda query, key, value, low, high, backend=backend: nala_attention(
                query,
                key,
                value,
                alpha_range=(low, high),
                direction=direction,
                rope=inputs.rope,
                is_causal=is_causal,
                key_padding_mask=inputs.mask,
                backend=backend,
            ),
            *inputs[:3],
            torch.full((3,), 0.5, dtype=torch.float64),
            torch.full((3,), 2.0, dtype=torch.float64),
        )
        results.append((out, *grads))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11 * max(1.0, theirs.abs().max().item()))


@pytest.mark.slow
@pytest.mark.parametrize("is_causal", [False, True])
def test_no_graph_for_each_length(monkeypatch, is_causal):
    """Through the tracer alone, which is what decides: a few graphs for whole and cut inputs, then no more."""
    compiled._compiled.cache_clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    before, graphs = counters["stats"]["unique_graphs"], []
    for N in (5000, 9000, 7001, 12345, 6002):
        leaves = [torch.randn(1, 2, N, 32, requires_grad=True) for _ in range(3)]
        nala_attention(*leaves, is_causal=is_causal, backend="compiled").sum().backward()
        graphs.append(counters["stats"]["unique_graphs"])
    compiled._compiled.cache_clear()
    # Two functions forth and two back, or one and one. The tracer makes one more of each where a block is the whole
    # input, where it has one stretch, and where two sizes that happen to be equal later are not; never one a length.
    assert graphs[-1] - before <= 10
    assert graphs[-1] == graphs[-2]


# One to four minutes of generating code each: the slow tests take the shorter, and bfloat16; a campaign the other.
@pytest.mark.parametrize(
    ("direction", "is_causal"),
    [
        pytest.param("cosine", False, marks=pytest.mark.slow),
        pytest.param("split", True, marks=pytest.mark.campaign),
    ],
)
def test_it_equals_the_definition(make_inputs, gradients, direction, is_causal):
    for N in (1, 321):
        compare(gradients, make_inputs(N, D=16, E=24), direction=direction, is_causal=is_causal)


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.bfloat16, marks=pytest.mark.slow),
        pytest.param(torch.float32, marks=pytest.mark.campaign),
    ],
)
def test_narrow_dtypes(make_inputs, gradients, dtype):
    inputs = make_inputs(65, D=16, E=16, dtype=dtype)
    results = [
        gradients(lambda *qkv, backend=backend: nala_attention(*qkv, backend=backend), *inputs[:3])
        for backend in ("compiled", "chunked")
    ]
    (out, grads), (expected, expected_grads) = results
    for ours, theirs in zip((out, *grads), (expected, *expected_grads), strict=True):
        assert ours.dtype == dtype
        bound = 1e-5 if dtype == torch.float32 else 8e-3
        assert (ours.double() - theirs.double()).norm() <= bound * theirs.double().norm()
