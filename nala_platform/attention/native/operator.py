"""The kernels as operators of PyTorch: one node of a graph that ``torch.compile`` makes, forward and backward."""

from typing import Any

import torch
from torch import Tensor

from nala_platform.attention.layout import empty_like
from nala_platform.attention.native.engine import NATIVE, kept_numbers
from nala_platform.attention.native.library import Kind, lanes_of
from nala_platform.attention.precision import as_tensors, widest
from nala_platform.attention.signature import Options

_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor low, Tensor high, Tensor? cos, Tensor? sin, Tensor? mask, "
    "str alpha_gate, float key_power, str direction, bool is_causal, float eps"
)
"""Of both operators, in this order."""


def in_graph(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    """``Backend``, for ``torch.compile``; the gradient of the gradient is refused by PyTorch."""
    lanes = lanes_of(*Kind.of(query, options.direction))
    return nala_native(*_inputs(query, key, value, options), lanes)[0]


def gradients_in_graph(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, states: Tensor, options: Options
) -> tuple[Tensor | None, ...]:
    """``Engine.backward`` where a graph is made of a backward pass alone."""
    *grads, by_low, by_high = nala_native_backward(grad, states, *_inputs(query, key, value, options))
    bounds = zip((by_low, by_high), options.alpha_range, strict=True)
    return (*grads, *(end if isinstance(bound, Tensor) else None for end, bound in bounds))


def _inputs(query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Any, ...]:
    cos, sin = options.rope or (None, None)
    rest = options.alpha_gate, float(options.key_power), options.direction, options.is_causal, options.eps
    return query, key, value, *as_tensors(options.alpha_range, query), cos, sin, options.key_padding_mask, *rest


def _options(*given: Any) -> Options:
    """From what follows the values in ``_INPUTS``."""
    low, high, cos, sin, mask, alpha_gate, key_power, direction, is_causal, eps = given
    rope = None if cos is None or sin is None else (cos, sin)
    return Options((low, high), alpha_gate, key_power, direction, rope, is_causal, mask, eps)


@torch.library.custom_op(
    "nala::native", mutates_args=(), device_types="cpu", schema=f"({_INPUTS}, int lanes) -> (Tensor, Tensor)"
)
def nala_native(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """(out, what the backward pass is given). ``lanes`` tells graphs apart that are kept for unlike machines."""
    *given, _ = rest
    out, (states,) = NATIVE.forward(query, key, value, _options(*given))
    return out, states


@torch.library.custom_op(
    "nala::native_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor grad, Tensor states, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def nala_native_backward(
    grad: Tensor, states: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    """The gradients of query, key, value, low and high."""
    grads = NATIVE.backward(query, key, value, grad, [states], _options(*rest))
    return tuple(grad for grad in grads if grad is not None)


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
