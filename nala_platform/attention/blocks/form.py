"""NaLa in blocks of tokens that stay in a cache, with the gradient in closed form: what autograd keeps is q, k, v.

The features, twice as wide as the head, are never whole: a block makes its own and drops them, in the backward pass
once more. Beside the inputs only the sums are kept, ``2D x E`` a head; in the causal form one set a block.
"""

from typing import Any

import torch
from torch import Tensor

from nala_platform.attention.blocks.call import AS_THEY_ARE, Kernels, cut_up
from nala_platform.attention.blocks.passes import backward, causal_backward, causal_forward, forward
from nala_platform.attention.forms import plain
from nala_platform.attention.precision import autocast_off
from nala_platform.attention.signature import Options
from nala_platform.errors import UserError


def chunked_form(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    """``Backend``: see the module's text. Rotary tables get no gradient.

    Raises:
        UserError: a table of ``rope`` requires a gradient, or the call is traced by ``torch.compile``, ``torch.export``
            or a transform of ``torch.func``: there "plain" is the one.
    """
    return through_blocks(query, key, value, options, AS_THEY_ARE, "chunked")


def through_blocks(
    query: Tensor, key: Tensor, value: Tensor, options: Options, kernels: Kernels, backend: str
) -> Tensor:
    """``chunked_form`` with the given kernels; ``backend`` is its name in messages."""
    why = obstacle(query, options)
    if why is not None:
        raise UserError(f"backend={backend!r} cannot run {why}; backend='plain' can")
    low, high = options.alpha_range
    return _Blocks.apply(query, key, value, low, high, options, kernels)


def obstacle(query: Tensor, options: Options) -> str | None:
    """Why the blocks cannot run here, or None."""
    if torch.compiler.is_compiling():
        return "inside torch.compile or torch.export, whose graph would hold one copy of it a block"
    if torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0:
        return "under a transform of torch.func or in forward-mode differentiation"
    if options.rope is not None and any(table.requires_grad for table in options.rope) and torch.is_grad_enabled():
        return "with a rope that requires a gradient"
    return None


class _Blocks(torch.autograd.Function):
    """All blocks of one call; the gradient of the gradient goes by way of ``forms.plain``."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        low: Tensor | float,
        high: Tensor | float,
        options: Options,
        kernels: Kernels,
    ) -> Tensor:
        call = cut_up(query, value, options, kernels, both=False)
        # detached, because a compiled block would ask for a second graph
        run = causal_forward if options.is_causal else forward
        out, sums = run(call, query.detach(), key.detach(), value.detach())
        ctx.options, ctx.kernels = options._replace(alpha_range=(0, 0), rope=None), kernels
        ranges = [bound if isinstance(bound, Tensor) else None for bound in (low, high)]
        ctx.numbers = [bound for bound in (low, high) if not isinstance(bound, Tensor)]
        ctx.save_for_backward(query, key, value, *ranges, *(options.rope or (None, None)), *sums)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, low, high, cos, sin, *sums = ctx.saved_tensors
        numbers = iter(ctx.numbers)
        low, high = (next(numbers) if bound is None else bound for bound in (low, high))
        rope = None if cos is None else (cos, sin)
        options = ctx.options._replace(alpha_range=(low, high), rope=rope)
        with autocast_off(query):
            if torch.is_grad_enabled():
                return (*_differentiable(grad, (query, key, value, low, high), options), None, None)
            call = cut_up(query, value, options, ctx.kernels, both=True)
            run = causal_backward if options.is_causal else backward
            grads = run(call, query.detach(), key.detach(), value.detach(), grad.detach(), sums)
        return (*grads, None, None)


def _differentiable(grad: Tensor, inputs: tuple[Tensor | float, ...], options: Options) -> tuple[Tensor | None, ...]:
    """The gradients as a graph of their own."""
    query, key, value, low, high = inputs
    assert isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)
    out = plain(query, key, value, options._replace(alpha_range=(low, high))).to(value.dtype)
    wanted = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
    return tuple(next(found) if isinstance(x, Tensor) and x.requires_grad else None for x in inputs)
