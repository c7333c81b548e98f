"""The attention calls of one step, recorded with their inputs, to be run again on their own.

A profile cannot tell which kernels of a backward pass belong to an attention; this can, whatever the backend.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nala_platform.attention import ATTENTION


class Call(NamedTuple):
    """One call of a mechanism: its inputs, and the options that it was given."""

    function: Callable[..., Tensor]
    tensors: tuple[Tensor, ...]
    options: dict[str, Any]
    gradient: Tensor
    """some gradient of the result, of its shape"""

    def run(self, *, is_training: bool) -> object:
        """The same again; ``is_training``: with the gradients of q, k and v."""
        if not is_training:
            with torch.no_grad():
                return self.function(*self.tensors, **self.options)
        return torch.autograd.grad(self.function(*self.tensors, **self.options), self.tensors, self.gradient)


@contextlib.contextmanager
def recording(network: nn.Module) -> Iterator[list[Call]]:
    """While this lasts, every attention that ``network`` calls is put into the list.

    Layers either hold the function as their ``attention`` or look it up in ``ATTENTION`` when they are called.
    """
    calls: list[Call] = []
    rows = dict(ATTENTION)
    holders: list[Any] = [module for module in network.modules() if callable(getattr(module, "attention", None))]
    held = [holder.attention for holder in holders]
    try:
        ATTENTION.update({name: _recorded(function, calls) for name, function in rows.items()})
        for holder, function in zip(holders, held, strict=True):
            holder.attention = _recorded(function, calls)
        yield calls
    finally:
        ATTENTION.update(rows)
        for holder, function in zip(holders, held, strict=True):
            holder.attention = function


def _recorded(function: Callable[..., Tensor], calls: list[Call]) -> Any:
    def call(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        out = function(query, key, value, **options)
        tensors = tuple(_copied(x).requires_grad_() for x in (query, key, value))
        plain = {name: _detached(option) for name, option in options.items()}
        calls.append(Call(function, tensors, plain, torch.randn_like(out)))
        return out

    return call


def _copied(x: Tensor) -> Tensor:
    """With the strides that the layer gave it, as parts of one projection say: the time depends on them."""
    if 0 in x.stride():
        return x.detach().clone()
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x.detach())


def _detached(option: Any) -> Any:
    if isinstance(option, Tensor):
        return option.detach()
    return tuple(_detached(part) for part in option) if isinstance(option, tuple) else option
