"""One call of the kernels: what they are told, and the memory that they are given.

Shapes: B batch, H heads, N queries, M keys, D head size, E value size.
"""

from ctypes import CDLL
from typing import NamedTuple

import torch
from torch import Tensor

from nala_platform.attention.feature_map import GATES
from nala_platform.attention.layout import empty_like
from nala_platform.attention.masking import keys_seen
from nala_platform.attention.native import library
from nala_platform.attention.native.library import Kind, lanes_of
from nala_platform.attention.plain import State
from nala_platform.attention.precision import as_tensors, widest
from nala_platform.attention.signature import Options
from nala_platform.errors import UserError

DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
"""``Dtype`` of ``call.h``."""
ALIGNED = 64
"""Bytes, to a multiple of which PyTorch aligns its own memory, and the kernels take states for aligned."""
SHORTEST_SPAN = 1024
"""Tokens of a span at least. A span's sums have memory of their own, for heads of 64 an eighth of its keys'."""
SPAN_OF_SIZE, CAUSAL_SPAN_OF_SIZE = 4, 32
"""Tokens of a span at least for each number of a head. The causal form keeps the sums before each span but the first,
which then are 2 % of what it is given."""


class Native:
    """``gradient.Engine``."""

    backend = "native"

    def forward(self, query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, list[Tensor]]:
        call = _prepared(query, key, value, options, _counts(query, key, options))
        out, states = self._forward(call, query, value, options)
        return out, [states]

    def _forward(self, call: "_Prepared", query: Tensor, value: Tensor, options: Options) -> tuple[Tensor, Tensor]:
        out = empty_like(value, query.shape[2])
        call.struct.out = _described(out)
        numbers = kept_numbers(query, value, options.direction, is_causal=options.is_causal)
        states = query.new_empty(numbers, dtype=widest(query))
        call.struct.states, call.struct.state_numbers = states.data_ptr(), numbers
        run(call.kernels.nala_forward(call.struct))
        return out, states

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: State | None, options: Options
    ) -> tuple[Tensor, State]:
        """The causal form behind the keys in ``state``, and the state behind it; no gradients."""
        count_BN = keys_seen(query, options.key_padding_mask)
        if state is not None:
            count_BN = count_BN + state.count_B[:, None]
        call = _prepared(query, key, value, options, count_BN.clamp_min(1))
        if state is not None:
            sums, keys = (_numbers(part, part.dtype) for part in state[:2])
            call.struct.start_sums, call.struct.start_keys = sums.data_ptr(), keys.data_ptr()
        batch, heads, _, size = query.shape
        after = State(
            query.new_empty((batch, heads, 2 * size, value.shape[3]), dtype=widest(query)),
            query.new_empty((batch, heads, 2 * size), dtype=widest(query)),
            count_BN[:, -1].clone(),
        )
        call.struct.end_sums, call.struct.end_keys = (part.data_ptr() for part in after[:2])
        return self._forward(call, query, value, options)[0], after

    def backward(
        self, query: Tensor, key: Tensor, value: Tensor, grad: Tensor, kept: list[Tensor], options: Options
    ) -> tuple[Tensor | None, ...]:
        call = _prepared(query, key, value, options, _counts(query, key, options))
        grad = _rows(grad)
        grads = [empty_like(x, x.shape[2]) for x in (query, key, value)]
        ends = query.new_empty((2, query.shape[1]), dtype=widest(query))
        call.struct.out = _described(grad)
        call.struct.query_grad, call.struct.key_grad, call.struct.value_grad = map(_described, grads)
        numbers = kept_numbers(query, value, options.direction, is_causal=options.is_causal)
        states = _state(kept[0], numbers, widest(query))
        call.struct.states, call.struct.state_numbers = states.data_ptr(), numbers
        call.struct.bound_grads = ends.data_ptr()
        run(call.kernels.nala_backward(call.struct))
        bounds = (
            end.to(bound.dtype, copy=True) if isinstance(bound, Tensor) else None
            for end, bound in zip(ends.unbind(), options.alpha_range, strict=True)
        )
        return (*grads, *bounds)


NATIVE = Native()


class _Prepared(NamedTuple):
    kernels: CDLL
    struct: library.Call
    tensors: list[Tensor]
    """whose memory the struct names"""


def _prepared(query: Tensor, key: Tensor, value: Tensor, options: Options, counts: Tensor) -> _Prepared:
    sums = widest(query)
    batch, heads, queries, size = query.shape
    inputs = [_rows(x) for x in (query, key, value)]
    low, high = (_numbers(bound, sums) for bound in as_tensors(options.alpha_range, query))
    cos, sin = (None, None) if options.rope is None else (_numbers(table, sums) for table in options.rope)
    mask = None if options.key_padding_mask is None else _numbers(options.key_padding_mask, torch.bool)
    struct = library.Call(
        batch=batch,
        heads=heads,
        queries=queries,
        keys=key.shape[2],
        size=size,
        values=value.shape[3],
        is_causal=options.is_causal,
        span=_span(size, value.shape[3], is_causal=options.is_causal),
        threads=torch.get_num_threads(),
        gate_slope=GATES[options.alpha_gate],
        key_power=options.key_power,
        eps=options.eps,
    )
    struct.query, struct.key, struct.value = map(_described, inputs)
    named = {"cos": cos, "sin": sin, "mask": mask, "counts": counts.contiguous(), "low": low, "high": high}
    for name, x in named.items():
        setattr(struct, name, None if x is None else x.data_ptr())
    kernels = library.library(*Kind.of(query, options.direction))
    return _Prepared(kernels, struct, [*inputs, *(x for x in named.values() if x is not None)])


def kept_numbers(query: Tensor, value: Tensor, direction: str, *, is_causal: bool) -> int:
    """Numbers that a call keeps for its gradient beside the inputs: ``Call.states``."""
    lanes = lanes_of(*Kind.of(query, direction))
    batch, heads, queries, size = query.shape
    features, columns = 2 * _up(size, lanes) * lanes, _up(value.shape[3], lanes) * lanes
    spans = _up(queries, _span(size, value.shape[3], is_causal=is_causal))
    return batch * heads * features * (columns + 1) * (spans - 1 if is_causal else 1)


def _span(size: int, values: int, *, is_causal: bool) -> int:
    return max(SHORTEST_SPAN, (CAUSAL_SPAN_OF_SIZE if is_causal else SPAN_OF_SIZE) * max(size, values))


def _up(x: int, by: int) -> int:
    return (x + by - 1) // by


def _rows(x_BHNX: Tensor) -> Tensor:
    """With the numbers of a token beside each other."""
    x_BHNX = _solid(x_BHNX)
    return x_BHNX if x_BHNX.stride(3) == 1 or x_BHNX.shape[3] == 1 else x_BHNX.contiguous()


def _numbers(x: Tensor, dtype: torch.dtype) -> Tensor:
    return _solid(x).to(dtype).contiguous()


def _solid(x: Tensor) -> Tensor:
    """With its numbers in memory as they are: what the kernels are given is an address."""
    why = unfit(x)
    if why is not None:
        raise UserError(f"backend='native' {why}; backend='chunked' takes it")
    # a tensor of zeros without memory, and one whose signs are all to be turned
    return x.clone() if x._is_zerotensor() else x.resolve_neg()


def unfit(x: Tensor) -> str | None:
    """Why the kernels cannot be given this tensor, or None."""
    if x.device.type != "cpu" or x.layout != torch.strided or type(x) not in (Tensor, torch.nn.Parameter):
        return f"computes on plain tensors on a CPU, got a {type(x).__name__} on {x.device}"
    return None


def _state(x: Tensor, numbers: int, dtype: torch.dtype) -> Tensor:
    """What the forward pass has left, as it comes back from wherever hooks have put it."""
    if x.numel() != numbers or x.dtype != dtype:
        raise RuntimeError(f"a saved tensor came back as {x.numel()} {x.dtype}, it was {numbers} {dtype}")
    x = _solid(x).contiguous()
    return x if x.data_ptr() % ALIGNED == 0 else x.clone()


def _described(x_BHNX: Tensor) -> library.Tensor:
    batch, head, token, _ = x_BHNX.stride()
    return library.Tensor(x_BHNX.data_ptr(), batch, head, token, DTYPES[x_BHNX.dtype])


def run(code: int) -> None:
    """Raise what a kernel's exit code stands for."""
    if code == 1:
        raise MemoryError("there is not enough memory for the sums of an attention call")
    if code:
        raise RuntimeError("engine.kept_numbers and maps.h do not agree on the size of a state")


def _counts(query: Tensor, key: Tensor, options: Options) -> Tensor:
    """How many keys a query sees, at least 1: (B,), or (B, N) if causal."""
    if options.is_causal:
        return keys_seen(query, options.key_padding_mask).clamp_min(1)
    batch, mask_BM = query.shape[0], options.key_padding_mask
    if mask_BM is None:
        return query.new_full((batch,), key.shape[2], dtype=widest(query))
    return (~mask_BM).sum(1).clamp_min_(1).to(widest(query))
