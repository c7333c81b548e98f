"""NaLa on a CPU in kernels of our own: maps, rotations, products and their gradients, tile by tile in one go.

The sources stand beside this module: ``lanes.h`` vectors, logarithm and exponential; ``products.h`` small matrix
products; ``call.h`` what Python hands over; ``features.h`` the maps; ``spans.h`` threads; ``tiles.h``, ``both_ways.h``
and ``causal.h`` the passes. A library's product needs its factors in memory, and so features that are written, read,
turned, read again; here a tile of them is made, used and forgotten within a core's own cache.

``library`` builds and loads them, ``engine`` calls them, ``operator`` makes them one node of a compiled graph.
"""

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from nala_platform.attention.gradient import differentiable, obstacle
from nala_platform.attention.native import library
from nala_platform.attention.native.engine import DTYPES, NATIVE
from nala_platform.attention.native.operator import in_graph
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
    if _is_traced(options):
        return in_graph(query, key, value, options)
    return differentiable(query, key, value, options, NATIVE)


def is_at_hand(query: Tensor, key: Tensor, value: Tensor, options: Options) -> bool:
    """Whether ``native_form`` can compute this and nobody wants to see its operators; builds the library if need be.

    A dispatch mode, such as torch's counter of operations, sees PyTorch's operators alone.
    """
    if _unfit(query, key, value) is not None:
        return False
    is_seen = not torch.compiler.is_compiling() and _get_current_dispatch_mode() is not None
    if is_seen or (obstacle(query, options) is not None and not _is_traced(options)):
        return False
    return library.found(query.dtype == torch.float64, options.direction == "cosine")


def _is_traced(options: Options) -> bool:
    """Whether ``torch.compile`` makes a graph of this; one of ``torch.export`` may run on another machine."""
    learns_rope = options.rope is not None and any(table.requires_grad for table in options.rope)
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting() and not learns_rope


def _unfit(*inputs: Tensor) -> str | None:
    for x in inputs:
        if x.device.type != "cpu" or type(x) not in (Tensor, torch.nn.Parameter):
            return f"computes on plain tensors on a CPU, got a {type(x).__name__} on {x.device}"
        if x.dtype not in DTYPES:
            return f"takes {', '.join(map(str, DTYPES))}, got {x.dtype}"
    return None
