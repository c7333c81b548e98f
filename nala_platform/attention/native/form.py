"""NaLa on a CPU in kernels of our own: maps, rotations, products and their gradients, tile by tile in one go.

The sources stand beside this module: ``lanes.h`` vectors, logarithm and exponential; ``products.h`` small matrix
products; ``call.h`` what Python hands over; ``features.h`` the maps; ``spans.h`` threads; ``tiles.h``, ``both_ways.h``
and ``causal.h`` the passes. A library's product needs its factors in memory, and so features that are written, read,
turned, read again; here a tile of them is made, used and forgotten within a core's own cache.

Shapes: B batch, H heads, N queries, M keys, D head size, E value size.
"""

from ctypes import CDLL
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from nala_platform.attention.feature_map import GATES
from nala_platform.attention.gradient import differentiable
from nala_platform.attention.layout import empty_like
from nala_platform.attention.native import library
from nala_platform.attention.precision import widest
from nala_platform.attention.signature import Options
from nala_platform.errors import UserError

_DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
"""``Dtype`` of ``call.h``."""
SHORTEST_SPAN = 1024
"""Tokens of a span at least. A span's sums have memory of their own, for heads of 64 an eighth of its keys'."""
SPAN_OF_SIZE, CAUSAL_SPAN_OF_SIZE = 4, 32
"""Tokens of a span at least for each number of a head. The causal form keeps the sums before each span but the first,
which then are 2 % of what it is given."""


def native_form(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    """``Backend``: see the module's text. Rotary tables get no gradient; the results are the same with any threads.

    The first call on a machine compiles, which takes some seconds.

    Raises:
        UserError: as ``gradient.obstacle`` says, a tensor is not on a CPU or of another dtype than float64, float32,
            bfloat16 and float16, or there is no C++ compiler or it fails.
    """
    why = _unfit(query, key, value)
    if why is not None:
        raise UserError(f"backend='native' {why}; backend='chunked' takes it")
    return differentiable(query, key, value, options, _NATIVE)


def is_at_hand(query: Tensor, key: Tensor, value: Tensor, options: Options) -> bool:
    """Whether ``native_form`` can compute this and nobody wants to see its operators; builds the library if need be.

    A dispatch mode, such as torch's counter of operations, sees PyTorch's operators alone.
    """
    if _unfit(query, key, value) is not None or _get_current_dispatch_mode() is not None:
        return False
    return library.found(is_double=query.dtype == torch.float64, is_cosine=options.direction == "cosine")


def _unfit(*inputs: Tensor) -> str | None:
    for x in inputs:
        if x.device.type != "cpu" or type(x) not in (Tensor, torch.nn.Parameter):
            return f"computes on plain tensors on a CPU, got a {type(x).__name__} on {x.device}"
        if x.dtype not in _DTYPES:
            return f"takes {', '.join(map(str, _DTYPES))}, got {x.dtype}"
    return None


class _Native:
    """``gradient.Engine``."""

    backend = "native"

    def forward(self, query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, list[Tensor]]:
        call = _prepared(query, key, value, options)
        out = empty_like(value, query.shape[2])
        call.struct.out = _described(out)
        states = query.new_empty(call.kernels.nala_states(call.struct), dtype=widest(query))
        call.struct.states = states.data_ptr()
        _run(call.kernels.nala_forward(call.struct))
        return out, [states]

    def backward(
        self, query: Tensor, key: Tensor, value: Tensor, grad: Tensor, kept: list[Tensor], options: Options
    ) -> tuple[Tensor | None, ...]:
        call = _prepared(query, key, value, options)
        grad = _rows(grad)
        grads = [empty_like(x, x.shape[2]) for x in (query, key, value)]
        ends = query.new_empty((2, query.shape[1]), dtype=widest(query))
        call.struct.out = _described(grad)
        call.struct.query_grad, call.struct.key_grad, call.struct.value_grad = map(_described, grads)
        call.struct.states, call.struct.bound_grads = kept[0].data_ptr(), ends.data_ptr()
        _run(call.kernels.nala_backward(call.struct))
        bounds = (
            end.to(bound.dtype) if isinstance(bound, Tensor) else None
            for end, bound in zip(ends.unbind(), options.alpha_range, strict=True)
        )
        return (*grads, *bounds)


_NATIVE = _Native()


class _Prepared(NamedTuple):
    kernels: CDLL
    struct: library.Call
    tensors: list[Tensor]
    """whose memory the struct names"""


def _prepared(query: Tensor, key: Tensor, value: Tensor, options: Options) -> _Prepared:
    sums = widest(query)
    batch, heads, queries, size = query.shape
    inputs = [_rows(x) for x in (query, key, value)]
    low, high = (
        bound.to(sums).contiguous() if isinstance(bound, Tensor) else torch.full((heads,), bound, dtype=sums)
        for bound in options.alpha_range
    )
    cos, sin = (None, None) if options.rope is None else (table.to(sums).contiguous() for table in options.rope)
    mask = None if options.key_padding_mask is None else options.key_padding_mask.contiguous()
    counts = _counts(query, key, options)
    per_number = CAUSAL_SPAN_OF_SIZE if options.is_causal else SPAN_OF_SIZE
    struct = library.Call(
        batch=batch,
        heads=heads,
        queries=queries,
        keys=key.shape[2],
        size=size,
        values=value.shape[3],
        is_causal=options.is_causal,
        span=max(SHORTEST_SPAN, per_number * max(size, value.shape[3])),
        threads=torch.get_num_threads(),
        gate_slope=GATES[options.alpha_gate],
        key_power=options.key_power,
        eps=options.eps,
    )
    struct.query, struct.key, struct.value = map(_described, inputs)
    named = {"cos": cos, "sin": sin, "mask": mask, "counts": counts, "low": low, "high": high}
    for name, x in named.items():
        setattr(struct, name, None if x is None else x.data_ptr())
    kernels = library.library(is_double=sums == torch.float64, is_cosine=options.direction == "cosine")
    return _Prepared(kernels, struct, [*inputs, *(x for x in named.values() if x is not None)])


def _rows(x_BHNX: Tensor) -> Tensor:
    """With the numbers of a token beside each other."""
    return x_BHNX if x_BHNX.stride(3) == 1 or x_BHNX.shape[3] == 1 else x_BHNX.contiguous()


def _described(x_BHNX: Tensor) -> library.Tensor:
    batch, head, token, _ = x_BHNX.stride()
    return library.Tensor(x_BHNX.data_ptr(), batch, head, token, _DTYPES[x_BHNX.dtype])


def _run(code: int) -> None:
    if code:
        raise MemoryError("there is not enough memory for the sums of an attention call")


def _counts(query: Tensor, key: Tensor, options: Options) -> Tensor:
    """How many keys a query sees, at least 1: (B,), or (B, N) if causal."""
    batch, _, queries, _ = query.shape
    mask_BM, sums = options.key_padding_mask, widest(query)
    if mask_BM is None:
        if options.is_causal:
            return torch.arange(1, queries + 1, dtype=sums).expand(batch, -1).contiguous()
        return torch.full((batch,), key.shape[2], dtype=sums)
    seen_BM = ~mask_BM
    return (seen_BM.cumsum(1) if options.is_causal else seen_BM.sum(1)).clamp_min(1).to(sums)
