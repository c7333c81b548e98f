"""The kernels as operators of PyTorch: one node of a graph that ``torch.compile`` makes, forward and backward."""

from typing import Any

import torch
from torch import Tensor

from nala_platform.attention.layout import empty_like
from nala_platform.attention.native.engine import NATIVE, kept_numbers
from nala_platform.attention.native.library import lanes_of
from nala_platform.attention.precision import widest
from nala_platform.attention.signature import Options


def in_graph(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    """``Backend``, for ``torch.compile``; the gradient of the gradient is refused by PyTorch."""
    low, high = _bounds(query, options)
    cos, sin = options.rope or (None, None)
    rest = options.key_padding_mask, options.alpha_gate, float(options.key_power), options.direction
    lanes = lanes_of(query.dtype == torch.float64, options.direction == "cosine")
    return nala_native(query, key, value, low, high, cos, sin, *rest, options.is_causal, options.eps, lanes)[0]


def gradients_in_graph(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, states: Tensor, options: Options
) -> tuple[Tensor | None, ...]:
    """``Engine.backward`` where a graph is made of a backward pass alone."""
    low, high = _bounds(query, options)
    cos, sin = options.rope or (None, None)
    rest = options.key_padding_mask, options.alpha_gate, float(options.key_power), options.direction
    given = query, key, value, low, high, cos, sin, *rest, options.is_causal, options.eps
    *grads, by_low, by_high = nala_native_backward(grad, states, *given)
    bounds = zip((by_low, by_high), options.alpha_range, strict=True)
    return (*grads, *(end if isinstance(bound, Tensor) else None for end, bound in bounds))


def _bounds(query: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    low, high = (
        bound if isinstance(bound, Tensor) else query.new_full(query.shape[1:2], bound, dtype=widest(query))
        for bound in options.alpha_range
    )
    return low, high


@torch.library.custom_op("nala::native", mutates_args=(), device_types="cpu")
def nala_native(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    low: Tensor,
    high: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    mask: Tensor | None,
    alpha_gate: str,
    key_power: float,
    direction: str,
    is_causal: bool,
    eps: float,
    lanes: int,
) -> tuple[Tensor, Tensor]:
    """(out, what the backward pass is given). ``lanes`` tells graphs apart that are kept for unlike machines."""
    options = _options(low, high, cos, sin, mask, alpha_gate, key_power, direction, is_causal, eps)
    out, (states,) = NATIVE.forward(query, key, value, options)
    return out, states


@torch.library.custom_op("nala::native_backward", mutates_args=(), device_types="cpu")
def nala_native_backward(
    grad: Tensor,
    states: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    low: Tensor,
    high: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    mask: Tensor | None,
    alpha_gate: str,
    key_power: float,
    direction: str,
    is_causal: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, value, low and high."""
    options = _options(low, high, cos, sin, mask, alpha_gate, key_power, direction, is_causal, eps)
    grads = NATIVE.backward(query, key, value, grad, [states], options)
    query_grad, key_grad, value_grad, by_low, by_high = (grad for grad in grads if grad is not None)
    return query_grad, key_grad, value_grad, by_low, by_high


def _options(
    low: Tensor, high: Tensor, cos: Tensor | None, sin: Tensor | None, mask: Tensor | None, *rest: Any
) -> Options:
    alpha_gate, key_power, direction, is_causal, eps = rest
    rope = None if cos is None or sin is None else (cos, sin)
    return Options((low, high), alpha_gate, key_power, direction, rope, is_causal, mask, eps)


@nala_native.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, direction, is_causal, _, _ = rest
    states = query.new_empty(kept_numbers(query, value, direction, is_causal=is_causal), dtype=widest(query))
    return empty_like(value, query.shape[2]), states


@nala_native_backward.register_fake
def _(
    grad: Tensor, states: Tensor, query: Tensor, key: Tensor, value: Tensor, low: Tensor, high: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    return (*(empty_like(x, x.shape[2]) for x in (query, key, value)), torch.empty_like(low), torch.empty_like(high))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, ctx.rest = inputs[:8], inputs[8:-1]
    ctx.save_for_backward(output[1], *tensors)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
    return (*nala_native_backward(grad, *ctx.saved_tensors, *ctx.rest), *(None,) * 9)


nala_native.register_autograd(_gradients, setup_context=_keep)
