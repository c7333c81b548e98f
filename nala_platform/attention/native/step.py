"""One more token after a state, in the kernels, with as little Python as that takes.

What follows from shapes, dtypes and options alone is validated and described at the first token of its kind and kept;
a later token adds addresses. Without this the description costs several times what the kernel does.
"""

import ctypes
import struct
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from nala_platform.attention.door import check
from nala_platform.attention.feature_map import GATES
from nala_platform.attention.gradient import obstacle
from nala_platform.attention.native import library
from nala_platform.attention.native.engine import DTYPES, SHORTEST_SPAN, run
from nala_platform.attention.native.form import is_at_hand
from nala_platform.attention.native.library import Kind
from nala_platform.attention.plain import State
from nala_platform.attention.precision import as_tensors, widest
from nala_platform.attention.signature import Options

_CALL = struct.Struct("9q" + 7 * "Q4q" + "6Q3dQq5Q")
"""``library.Call``"""
_NOTHING = (0,) * 5
_KINDS = 256  # that are kept


class _Plan(NamedTuple):
    """All of ``library.Call`` but addresses, for calls of one kind."""

    forward: Callable[[bytes], int]
    sizes: tuple[int, ...]
    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    out: tuple[int, ...]
    """strides and dtype"""
    bounds: tuple[Tensor, Tensor]
    bound_addresses: tuple[int, int]
    numbers: tuple[float, float, float]
    out_shape: tuple[int, ...]
    table_shape: tuple[int, int]
    state_shapes: tuple[tuple[int, ...], ...]
    sums: torch.dtype


_plans: dict[tuple[object, ...], _Plan] = {}


def quick_step(
    query: Tensor, key: Tensor, value: Tensor, state: State, options: Options
) -> tuple[Tensor, State] | None:
    """What ``NATIVE.step`` gives for one token; None where anything about the call is out of the ordinary.

    The caller makes sure that no graph is made and no gradient is wanted.
    """
    low, high = options.alpha_range
    if isinstance(low, Tensor) or isinstance(high, Tensor) or query.ndim != 4 or query.shape[2] != 1:
        return None
    rope, mask = options.rope or (), options.key_padding_mask
    for x in (query, key, value, *state, *rope):
        if type(x) is not Tensor or not x.is_cpu or x.is_neg():
            return None
    if _get_current_dispatch_mode() is not None or obstacle(query, options) is not None:
        return None
    plan = _plan(query, key, value, options)
    if plan is None or not _fits(plan, state, rope):
        return None
    if mask is None:
        count_B = seen_B = state.count_B + 1
    else:
        if type(mask) is not Tensor or not mask.is_cpu or mask.dtype != torch.bool or mask.shape != query.shape[::2]:
            return None
        mask = mask.contiguous()
        count_B = state.count_B + ~mask[:, 0]
        seen_B = count_B.clamp_min(1)
    out = value.new_empty(plan.out_shape)
    after = State(torch.empty_like(state.key_value_BHFE), torch.empty_like(state.key_BHF), count_B)
    cos, sin = (table.data_ptr() for table in rope) if rope else (0, 0)
    call = _CALL.pack(
        *plan.sizes,
        *(query.data_ptr(), *plan.query),
        *(key.data_ptr(), *plan.key),
        *(value.data_ptr(), *plan.value),
        *(out.data_ptr(), *plan.out),
        *(*_NOTHING, *_NOTHING, *_NOTHING),
        *(cos, sin, 0 if mask is None else mask.data_ptr(), seen_B.data_ptr(), *plan.bound_addresses),
        *plan.numbers,
        *(0, 0, 0),
        *(state.key_value_BHFE.data_ptr(), state.key_BHF.data_ptr()),
        *(after.key_value_BHFE.data_ptr(), after.key_BHF.data_ptr()),
    )
    run(plan.forward(call))
    return out, after


def _fits(plan: _Plan, state: State, rope: tuple[Tensor, ...]) -> bool:
    for part, shape in zip(state, plan.state_shapes, strict=True):
        if part.shape != shape or part.dtype != plan.sums or not part.is_contiguous():
            return False
    return all(x.shape == plan.table_shape and x.dtype == plan.sums and x.is_contiguous() for x in rope)


def _plan(query: Tensor, key: Tensor, value: Tensor, options: Options) -> _Plan | None:
    tensors = (query.shape, query.stride(), query.dtype, key.shape, key.stride(), key.dtype)
    tensors += (value.shape, value.stride(), value.dtype)
    rest = (*options.alpha_range, options.alpha_gate, options.key_power, options.direction, options.eps)
    kind = (*tensors, *rest, options.rope is None, torch.get_num_threads())
    plan = _plans.get(kind)
    if plan is None:
        check(query, key, value, options)
        if any(x.stride(3) != 1 for x in (query, key, value)) or not is_at_hand(query, key, value, options):
            return None
        if len(_plans) >= _KINDS:
            _plans.clear()
        plan = _plans[kind] = _made(query, key, value, options)
    return plan


def _made(query: Tensor, key: Tensor, value: Tensor, options: Options) -> _Plan:
    batch, heads, _, size = query.shape
    values, sums = value.shape[3], widest(query)
    kernels = library.library(*Kind.of(query, options.direction))
    forward = kernels["nala_forward"]  # an object of its own, which takes bytes
    forward.argtypes, forward.restype = (ctypes.c_char_p,), ctypes.c_int
    low, high = (bound.contiguous() for bound in as_tensors(options.alpha_range, query))
    out = value.new_empty((batch, heads, 1, values))
    return _Plan(
        forward=forward,
        sizes=(batch, heads, 1, 1, size, values, 1, SHORTEST_SPAN, torch.get_num_threads()),
        query=_described(query),
        key=_described(key),
        value=_described(value),
        out=_described(out),
        bounds=(low, high),
        bound_addresses=(low.data_ptr(), high.data_ptr()),
        numbers=(GATES[options.alpha_gate], options.key_power, options.eps),
        out_shape=tuple(out.shape),
        table_shape=(1, size),
        state_shapes=((batch, heads, 2 * size, values), (batch, heads, 2 * size), (batch,)),
        sums=sums,
    )


def _described(x: Tensor) -> tuple[int, ...]:
    return *x.stride()[:3], DTYPES[x.dtype]
