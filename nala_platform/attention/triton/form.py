"""NaLa on a GPU: the O(N) form in fused Triton kernels, features and rotations never leaving the registers.

The kernels stand in ``kernels`` and ``gradients``. They have run in Triton's interpreter and have been
compiled for compute capability 9.0; no card has run them yet.

Shapes: B batch, H heads, N queries, M keys, D head size, E value size.
"""

from typing import Any

import torch
from torch import Tensor

from nala_platform.attention.forms import plain
from nala_platform.attention.precision import autocast_off
from nala_platform.attention.signature import Options
from nala_platform.errors import UserError

LARGEST = 128
"""The largest D."""
STATE = 64 * 64
"""The largest D x E, D as the next power of two, of a program, which holds a state 2D x E: wider values are cut."""


def triton_form(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    """The values and gradients of ``plain``, (B, H, N, E) in value's dtype; sums are float32.

    Inputs are float16, bfloat16 or float32, of any strides; backward keeps them and, without causality, the state
    2D (E + 1) of each head. Second derivatives are those of ``plain``. Results are the same at every run.
    Raises UserError for float64, for D above 128, for rope tables that want a gradient, and where Triton cannot
    run: it needs a CUDA device, or ``TRITON_INTERPRET=1`` in the environment from the start.
    """
    _check(query, key, value, options)
    _check_device(query)
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    low, high = (
        bound.to(query.device, torch.float32)
        if isinstance(bound, Tensor)
        else torch.full((query.shape[1],), bound, dtype=torch.float32, device=query.device)
        for bound in options.alpha_range
    )
    bounds, mask = torch.stack((low, high)), options.key_padding_mask
    cos, sin = (None, None) if options.rope is None else (table.float().contiguous() for table in options.rope)
    rest = options._replace(alpha_range=(0.0, 0.0), rope=None, key_padding_mask=None)
    # No column of the output depends on another's values.
    columns = value.split(min(128, STATE >> max(4, (query.shape[3] - 1).bit_length())), dim=3)
    outs = [_NaLa.apply(query, key, column, bounds, cos, sin, mask, rest) for column in columns]
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=3)


def _check(query: Tensor, key: Tensor, value: Tensor, options: Options) -> None:
    if query.dtype == torch.float64:
        raise UserError("backend='triton' computes in float32 and takes no float64; backend='chunked' does")
    if query.shape[3] > LARGEST:
        raise UserError(
            f"backend='triton' takes head sizes up to {LARGEST}, got D={query.shape[3]}; backend='chunked' takes any"
        )
    if options.rope is not None and any(table.requires_grad for table in options.rope):
        raise UserError("backend='triton' has no gradients of rope tables; detach them, or use backend='plain'")


def _check_device(query: Tensor) -> None:
    try:
        import triton
    except ImportError as error:
        raise UserError(
            "backend='triton' needs the package triton, which is not installed; backend='chunked' runs here"
        ) from error
    if query.device.type != "cuda" and not triton.knobs.runtime.interpret:  # pyright: ignore[reportAttributeAccessIssue]
        raise UserError(
            f"backend='triton' needs a CUDA device, got tensors on {query.device}; backend='chunked' runs here"
        )


class _NaLa(torch.autograd.Function):
    """query, key, value, bounds (2, H) float32, cos, sin, mask or None each, the other options -> out."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        from nala_platform.attention.triton import launch as launch

        inputs, options = launch.Inputs(*arguments[:-1]), arguments[-1]
        plan = launch.plan_for(inputs, options)
        with torch.cuda.device_of(inputs.query_BHND):
            state = launch.key_state(inputs, plan)
            out = launch.forward(inputs, state, plan, options)
        # The states of a causal call can outweigh its inputs, and are summed again; the one state of any other is kept.
        ctx.save_for_backward(*inputs, None if options.is_causal else state)
        ctx.options = options
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from nala_platform.attention.triton import launch as launch

        (grad,) = grads
        *saved, state = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _plain_gradients(grad, saved, ctx.options, ctx.needs_input_grad)
        inputs = launch.Inputs(*saved)
        plan = launch.plan_for(inputs, ctx.options)
        grad = grad if grad.stride(-1) == 1 else grad.contiguous()
        with torch.cuda.device_of(grad):
            state = launch.key_state(inputs, plan) if state is None else state
            gradients = launch.backward(grad, inputs, state, plan, ctx.options)
        return (*gradients, None, None, None, None)


def _plain_gradients(
    grad: Tensor, saved: list[Tensor], options: Options, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients as a graph that can be differentiated again, which the kernels' are not."""
    query, key, value, bounds, cos, sin, mask = saved
    low, high = bounds.unbind()
    rope = None if cos is None else (cos, sin)
    with autocast_off(query):
        out = plain(query, key, value, options._replace(alpha_range=(low, high), rope=rope, key_padding_mask=mask))
    wanted = [x for x, need in zip(saved, needed, strict=False) if need]
    found = iter(torch.autograd.grad(out.to(grad.dtype), wanted, grad, create_graph=True))
    return tuple(next(found) if need else None for need in needed)
