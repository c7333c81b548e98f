"""One node of autograd for the backends with a gradient in closed form: it keeps q, k, v and little more."""

from typing import Any, Protocol

import torch
from torch import Tensor

from nala_platform.attention.forms import plain
from nala_platform.attention.precision import autocast_off
from nala_platform.attention.signature import Options
from nala_platform.attention.tracing import is_jit_tracing
from nala_platform.errors import UserError


class Engine(Protocol):
    """Computes a call and its gradients outside autograd."""

    @property
    def backend(self) -> str:
        """Its name in messages."""
        ...

    def forward(self, query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, list[Tensor]]:
        """(out, what the backward pass is given beside the inputs)."""
        ...

    def backward(
        self, query: Tensor, key: Tensor, value: Tensor, grad: Tensor, kept: list[Tensor], options: Options
    ) -> tuple[Tensor | None, ...]:
        """The gradients of query, key, value, low and high; of an end of the range that is a number, None."""
        ...


def differentiable(query: Tensor, key: Tensor, value: Tensor, options: Options, engine: Engine) -> Tensor:
    """What the engine computes, with its gradients; the gradient of the gradient goes by way of ``forms.plain``.

    Raises:
        UserError: see ``obstacle``.
    """
    why = obstacle(query, options)
    if why is not None:
        raise UserError(f"backend={engine.backend!r} cannot run {why}; backend='plain' can")
    low, high = options.alpha_range
    return _ClosedForm.apply(query, key, value, low, high, options, engine)


def obstacle(query: Tensor, options: Options) -> str | None:
    """Why the node cannot stand here, or None."""
    # a traced loop over blocks would be a graph with one copy of its body for each
    if torch.compiler.is_compiling():
        return "inside torch.compile or torch.export"
    # a node of Python's is not part of a TorchScript or ONNX graph
    if is_jit_tracing():
        return "inside torch.jit.trace or torch.onnx.export"
    if is_transformed():
        return "under a transform of torch.func, vmap or in forward-mode differentiation"
    if learns_rope(options) and torch.is_grad_enabled():
        return "with a rope that requires a gradient"
    return None


def learns_rope(options: Options) -> bool:
    """Whether a rotary table requires a gradient."""
    return options.rope is not None and any(table.requires_grad for table in options.rope)


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode differentiation asks for rules that the node lacks."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


class _ClosedForm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        low: Tensor | float,
        high: Tensor | float,
        options: Options,
        engine: Engine,
    ) -> Tensor:
        # detached, because a compiled block would ask for a second graph
        out, kept = engine.forward(query.detach(), key.detach(), value.detach(), options)
        ctx.options, ctx.engine = options._replace(alpha_range=(0, 0), rope=None), engine
        ranges = [bound if isinstance(bound, Tensor) else None for bound in (low, high)]
        ctx.numbers = [bound for bound in (low, high) if not isinstance(bound, Tensor)]
        ctx.save_for_backward(query, key, value, *ranges, *(options.rope or (None, None)), *kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, low, high, cos, sin, *kept = ctx.saved_tensors
        numbers = iter(ctx.numbers)
        low, high = (next(numbers) if bound is None else bound for bound in (low, high))
        rope = None if cos is None else (cos, sin)
        options = ctx.options._replace(alpha_range=(low, high), rope=rope)
        with autocast_off(query):
            inputs = query, key, value, low, high
            if torch.is_grad_enabled():
                return (*_by_plain(grad, inputs, options, create_graph=True), None, None)
            # jacobian(vectorize=True) and grad(is_grads_batched=True) run this pass alone under vmap
            if _is_batched(grad):
                leaves = [x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in inputs]
                with torch.enable_grad():
                    return (*_by_plain(grad, tuple(leaves), options, create_graph=False), None, None)
            detached = query.detach(), key.detach(), value.detach(), grad.detach()
            return (*ctx.engine.backward(*detached, kept, options), None, None)


def _is_batched(x: Tensor) -> bool:
    internals: Any = torch._C
    functorch = internals._functorch
    return functorch.is_batchedtensor(x) or functorch.is_legacy_batchedtensor(x)


def _by_plain(
    grad: Tensor, inputs: tuple[Tensor | float, ...], options: Options, *, create_graph: bool
) -> tuple[Tensor | None, ...]:
    """The gradients of query, key, value, low and high through ``plain``, whose operators all have their rules."""
    query, key, value, low, high = inputs
    assert isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)
    out = plain(query, key, value, options._replace(alpha_range=(low, high))).to(value.dtype)
    wanted = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=create_graph))
    return tuple(next(found) if isinstance(x, Tensor) and x.requires_grad else None for x in inputs)
