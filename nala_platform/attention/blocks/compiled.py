"""The blocks through ``torch.compile``: one graph for each function of a block, whatever the number of tokens.

A block's maps, rotations and sums become a few loops of generated code; the products stay the library's. The walk over
the blocks is not compiled: it would be unrolled, once for each number of tokens.
"""

import shutil
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from nala_platform.attention.blocks import words
from nala_platform.attention.blocks.both_ways import Setting
from nala_platform.attention.blocks.call import AS_THEY_ARE, Kernels
from nala_platform.attention.blocks.form import Blocks
from nala_platform.attention.gradient import differentiable
from nala_platform.attention.precision import as_tensors
from nala_platform.attention.signature import Options
from nala_platform.errors import UserError

VARIANTS = 64
"""Graphs of one function at most: dtypes, ranks of one, with and without rope or mask each ask for one of their own."""


def compiled_form(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    """``Backend``: as ``form.chunked_form``; the first call of a kind compiles, which takes seconds to a minute.

    Raises:
        UserError: as there, or no C++ compiler is found for a CPU.
    """
    if query.device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++", "cl"))):
        raise UserError(
            "backend='compiled' needs a C++ compiler on the path (on Debian: apt-get install g++); backend='chunked' "
            "needs none"
        )
    # since numbers would be constants of the graph
    options = options._replace(alpha_range=as_tensors(options.alpha_range, query))
    return differentiable(query, key, value, options, _COMPILED)


@cache
def _compiled(function: Callable[..., Any], setting: Setting) -> Callable[..., Any]:
    # One closure a setting: its numbers and names are constants of the graph.
    def block(*tensors: Any) -> Any:
        return function(*tensors, setting)

    limits: Any = {"isolate_recompiles": True, "recompile_limit": VARIANTS}  # the stubs do not know them
    return torch.compile(block, fullgraph=True, dynamic=True, **limits)


def _run(function: Callable[..., Any], *arguments: Any) -> Any:
    *tensors, setting = arguments
    return _compiled(function, setting)(*tensors)


_COMPILED = Blocks("compiled", Kernels(words.COMPILED, *(partial(_run, function) for function in AS_THEY_ARE[1:])))
