"""Sums, norms and states are float32 whatever the input (float64 for float64 input)."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from nala_platform.attention.signature import AlphaRange
from nala_platform.attention.tracing import is_jit_tracing


def widest(x: Tensor) -> torch.dtype:
    """The dtype in which ``x`` is summed: float32, or float64 if it is float64."""
    return torch.promote_types(x.dtype, torch.float32)


def as_tensors(alpha_range: AlphaRange, query: Tensor) -> tuple[Tensor, Tensor]:
    """(low, high), each (H,): an end that is a number is written out for each head, in ``widest(query)``."""
    low, high = (
        bound if isinstance(bound, Tensor) else query.new_full(query.shape[1:2], bound, dtype=widest(query))
        for bound in alpha_range
    )
    return low, high


def widen(x: Tensor) -> Tensor:
    """``x`` in ``widest(x)``."""
    return x.to(widest(x))


def widen_bounded(x: Tensor) -> Tensor:
    """``widen(x)`` whose gradient saturates at the largest number of x's dtype, where a plain cast makes inf of it.

    For powers below 1, whose finite gradient near 0 (a component of 1e-7 in a query of norm 1e-4, say) can exceed
    fp16's 65504. A gradient that arrives as inf or NaN leaves as such.
    """
    # a trace that holds a function of Python's could not be saved
    if x.dtype == widest(x) or is_jit_tracing():
        return widen(x)
    return _WidenBounded.apply(x)


class _WidenBounded(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return widen(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.narrow = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return bounded(grad, ctx.narrow)


def bounded(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """``grad`` in ``dtype``: finite numbers saturate at its largest, inf and NaN stay what they are."""
    if grad.dtype == dtype:
        return grad
    top = torch.finfo(dtype).max
    return torch.where(grad.isinf(), grad, grad.clamp(-top, top)).to(dtype)


def autocast_off(x: Tensor) -> AbstractContextManager[object]:
    """A region in which autocast does not narrow products of ``widen``ed tensors on the device of ``x``."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
