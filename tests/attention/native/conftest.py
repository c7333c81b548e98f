"""What the tests of the C++ kernels share."""

import pytest
import torch

from nala_platform.attention import nala_attention


@pytest.fixture
def results():
    """(inputs, options) -> out and the gradients of query, key and value, with the inputs' rope and mask."""

    def compute(inputs, *, backend="native", **options):
        leaves = [x.clone().requires_grad_() for x in inputs[:3]]
        out = nala_attention(*leaves, rope=inputs.rope, key_padding_mask=inputs.mask, backend=backend, **options)
        return out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))

    return compute
