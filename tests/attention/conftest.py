"""Random inputs of the attention tests.

Shapes: B batch, H heads, N queries, M keys, D head size, E value size.
"""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from nala_platform.attention import nala_attention


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors this small gain nothing from threads, which on a busy machine cost thirty times the work itself."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Inputs(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    rope: tuple[Tensor, Tensor]
    mask: Tensor


@pytest.fixture
def make_inputs():
    """(N, ...) -> float64 inputs; the mask hides about a third of the keys, never all of a row unless N = 1."""

    def make(N, *, M=None, B=2, H=3, D=8, E=5, seed=0, dtype=torch.float64):
        random = torch.Generator().manual_seed(seed)
        M = N if M is None else M
        query, key, value = (
            torch.randn(B, H, tokens, size, generator=random, dtype=torch.float64).to(dtype)
            for tokens, size in ((N, D), (M, D), (M, E))
        )
        angles = (3 * torch.rand(N, D // 2, generator=random, dtype=torch.float64)).repeat_interleave(2, -1)
        mask = torch.rand(B, M, generator=random) < 0.3
        mask[:, M // 2] = M == 1
        return Inputs(query, key, value, (angles.cos(), angles.sin()), mask)

    return make


@pytest.fixture
def gradients():
    """(function of tensors, tensors) -> (out, gradients) for a fixed random gradient of the output."""

    def compute(function, *tensors):
        leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
        out = function(*leaves)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(out.dtype)
        return out.detach(), torch.autograd.grad(out, leaves, weight)

    return compute


@pytest.fixture
def steep_case(make_inputs):
    """(alpha_range, options) -> a function of (query, key, value, low, high) and leaves, some near 0, for `gradcheck`.

    A large eps keeps rows without common signs from being 1e6 times as steep as the others.
    """

    def make(alpha_range, **options):
        inputs = make_inputs(4, B=1, H=2, D=4, E=3)
        inputs.query[:, :, 1, 0], inputs.key[:, :, 1, 1] = 1e-3, -1e-3
        inputs.query[:, :, 2] *= 1e-2
        leaves = [tensor.requires_grad_() for tensor in inputs[:3]]
        leaves += [torch.full((2,), bound, dtype=torch.float64, requires_grad=True) for bound in alpha_range]

        def attention(query, key, value, low, high):
            given = {"rope": inputs.rope, "key_padding_mask": inputs.mask, "eps": 1e-2} | options
            return nala_attention(query, key, value, alpha_range=(low, high), **given)

        return attention, leaves

    return make
