"""How ``torch.jit.trace`` and ``torch.fx`` see the functions of this package."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch.fx import Proxy

Given = ParamSpec("Given")
Result = TypeVar("Result")


def is_jit_tracing() -> bool:
    """Whether ``torch.jit.trace``, or ``torch.onnx.export`` by way of it, records operators."""
    return torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]


@contextmanager
def untraced() -> Iterator[None]:
    """A region of a trace that compares lengths, which are tensors there, and leaves nothing in the graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # pyright: ignore[reportPrivateImportUsage]
        yield


def fx_leaf(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Let any tracer of ``torch.fx`` record a call as one node, as it does for functions of ``torch`` itself.

    What such a function does depends on shapes, which a proxy does not have. ``torch.fx.wrap`` and timm's registry
    reach a function only under the name that a module calls it by; a mechanism is an attribute of its module.
    """

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, Proxy):
                return argument.tracer.create_proxy("call_function", call, args, kwargs)  # pyright: ignore[reportReturnType]
        return function(*args, **kwargs)

    return call
