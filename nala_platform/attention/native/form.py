"""NaLa on a CPU in kernels of our own: maps, rotations, products and their gradients, tile by tile in one go.

The sources stand beside this module: ``lanes.h`` vectors, logarithm and exponential; ``products.h`` small matrix
products; ``call.h`` what Python hands over; ``maps.h`` the feature maps; ``spans.h`` threads; ``tiles.h``,
``both_ways.h`` and ``causal.h`` the passes. A library's product needs its factors in memory, and so features that are
written, read, turned, read again; here a tile of them is made, used and forgotten within a core's own cache.

``compiler`` and ``library`` build and load them, ``engine`` calls them, ``operator`` makes them one node of a graph.
"""

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from nala_platform.attention.gradient import differentiable, is_transformed, learns_rope, obstacle
from nala_platform.attention.native.engine import DTYPES, Native, unfit
from nala_platform.attention.native.library import Kind, found
from nala_platform.attention.native.operator import gradients_in_graph, in_graph
from nala_platform.attention.signature import Options
from nala_platform.errors import UserError


def native_form(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    """``Backend``: see the module's text. Rotary tables get no gradient; the results are the same with any threads.

    The first call on a machine compiles, which takes some seconds. Inside ``torch.compile`` it is one node.

    Raises:
        UserError: as ``gradient.obstacle`` says, a tensor is not on a CPU or of another dtype than float64, float32,
            bfloat16 and float16, or there is no C++ compiler or it fails.
    """
    why = _unfit(query, key, value)
    if why is not None:
        raise UserError(f"backend='native' {why}; backend='chunked' takes it")
    if _is_traced(options) or (_is_watched() and obstacle(query, options) is None):
        return in_graph(query, key, value, options)
    return differentiable(query, key, value, options, _NODE)


class _Node(Native):
    """Eager; a graph that is made of its backward pass alone, as compiled autograd does, gets the operator."""

    def backward(
        self, query: Tensor, key: Tensor, value: Tensor, grad: Tensor, kept: list[Tensor], options: Options
    ) -> tuple[Tensor | None, ...]:
        if torch.compiler.is_compiling() or _is_watched():
            return gradients_in_graph(query, key, value, grad, kept[0], options)
        return super().backward(query, key, value, grad, kept, options)


_NODE = _Node()


def is_at_hand(query: Tensor, key: Tensor, value: Tensor, options: Options) -> bool:
    """Whether ``native_form`` can compute this and nobody wants to see its operators; builds the library if need be.

    A dispatch mode, such as torch's counter of operations, sees PyTorch's operators alone.
    """
    if not _is_traced(options) and (_is_watched() or obstacle(query, options) is not None):
        return False
    if _unfit(query, key, value) is not None:
        return False
    return found(*Kind.of(query, options.direction))


def _is_traced(options: Options) -> bool:
    """Whether ``torch.compile`` makes a graph of this; one of ``torch.export`` may run on another machine."""
    if not torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    return not learns_rope(options) and not is_transformed()


def _is_watched() -> bool:
    """Whether a dispatch mode is to see operators: a counter, ``make_fx``, fake tensors."""
    return not torch.compiler.is_compiling() and _get_current_dispatch_mode() is not None


def _unfit(*inputs: Tensor) -> str | None:
    for x in inputs:
        why = unfit(x)
        if why is not None:
            return why
        if x.dtype not in DTYPES:
            return f"takes {', '.join(map(str, DTYPES))}, got {x.dtype}"
        if x.numel() == 0:
            return f"takes no empty tensors, got {tuple(x.shape)}"
    return None
