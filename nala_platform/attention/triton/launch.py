"""What the Triton backend launches, and with which tiles; only ``form`` imports this, when it is called.

Shapes: B batch, H heads, N queries, M keys, D head size, E value size, S spans of tokens, X numbers of a state.
"""

# A kernel's arguments are Triton's to check.
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from nala_platform.attention.layout import empty_like
from nala_platform.attention.signature import Options
from nala_platform.attention.triton.gradients import key_gradients, query_gradients
from nala_platform.attention.triton.kernels import exclusive_scan, key_sums, outputs, query_sums

TILE = 32 * 64
"""The largest tile of a head, tokens x D: what leaves room in shared memory for the state in float32."""
PROGRAMS = 528
"""About as many programs as a launch has: four on each of an H200's 132 multiprocessors."""
SCAN = 32
"""Spans, and numbers of a state, that one tile of the scan over spans takes."""


@dataclass(frozen=True)
class Plan:
    """What a kernel is compiled for."""

    HEADS: int
    D: int
    PAD_D: int
    E: int
    PAD_E: int
    BLOCK: int
    PRECISION: str
    COSINE: bool
    SIGMOID: bool
    KEY_POWER: float
    ROPE: bool
    CAUSAL: bool
    MASKED: bool


class Tokens(NamedTuple):
    """A tensor (B, H, N, ...) as kernels take it: a stride is 0 where it does not vary."""

    data: Tensor
    stride_b: int
    stride_h: int
    stride_n: int
    top: float
    """The largest finite number of its dtype."""


class Inputs(NamedTuple):
    """What the forward pass is given and the backward pass keeps; ``bounds_2H`` are low and high, float32."""

    query_BHND: Tensor
    key_BHMD: Tensor
    value_BHME: Tensor
    bounds_2H: Tensor
    cos_ND: Tensor | None
    sin_ND: Tensor | None
    mask_BM: Tensor | None


def _tokens(x: Tensor) -> Tokens:
    return Tokens(x, x.stride(0), x.stride(1), x.stride(2), torch.finfo(x.dtype).max)


def _table(x_ND: Tensor | None) -> Tokens | None:
    return None if x_ND is None else Tokens(x_ND, 0, 0, x_ND.stride(0), 0.0)


def _seen(mask_BM: Tensor | None) -> Tokens | None:
    return None if mask_BM is None else Tokens(mask_BM.view(torch.uint8), mask_BM.stride(0), 0, mask_BM.stride(1), 0.0)


def _floor(inputs: Inputs, options: Options) -> Tokens:
    """eps times the number of keys that each query sees, at least 1: the denominator's eps, its mean being a sum."""
    device, keys = inputs.key_BHMD.device, inputs.key_BHMD.shape[2]
    if inputs.mask_BM is None:
        count = torch.arange(1, keys + 1, device=device) if options.is_causal else torch.tensor(keys, device=device)
        strides = (0, 0, int(options.is_causal))
    elif options.is_causal:
        count = (~inputs.mask_BM).cumsum(1)
        strides = (keys, 0, 1)
    else:
        count = (~inputs.mask_BM).sum(1)
        strides = (1, 0, 0)
    return Tokens(count.clamp_min(1).float() * options.eps, *strides, 0.0)


def plan_for(inputs: Inputs, options: Options) -> Plan:
    """The plan of the forward pass. Products of half-precision inputs are summed in float32 from factors split in two
    bfloat16 numbers each (relative error 2^-16), those of float32 inputs from three products in TF32 (about 2^-21).
    """
    query, value = inputs.query_BHND, inputs.value_BHME
    half = all(x.dtype in (torch.float16, torch.bfloat16) for x in inputs[:3])
    pad = max(16, triton.next_power_of_2(query.shape[3]))
    return Plan(
        HEADS=query.shape[1],
        D=query.shape[3],
        PAD_D=pad,
        E=value.shape[3],
        PAD_E=max(16, triton.next_power_of_2(value.shape[3])),
        BLOCK=min(32, TILE // pad),
        PRECISION="ieee" if triton.knobs.runtime.interpret else "bf16x3" if half else "tf32x3",
        COSINE=options.direction == "cosine",
        SIGMOID=options.alpha_gate == "sigmoid",
        KEY_POWER=float(options.key_power),
        ROPE=inputs.cos_ND is not None,
        CAUSAL=options.is_causal,
        MASKED=inputs.mask_BM is not None,
    )


def _grid(x: Tensor, plan: Plan) -> tuple[tuple[int, int], int]:
    """(heads of all sequences, spans) and the tokens of a span, a multiple of BLOCK."""
    heads, blocks = x.shape[0] * x.shape[1], triton.cdiv(x.shape[2], plan.BLOCK)
    length = triton.cdiv(blocks, max(1, PROGRAMS // heads))
    return (heads, triton.cdiv(blocks, length)), length * plan.BLOCK


def _states(grid: tuple[int, int], plan: Plan, device: torch.device) -> Tensor:
    return torch.empty((*grid, 2 * plan.D * (plan.E + 1)), dtype=torch.float32, device=device)


def _joined(state_SX: Tensor, plan: Plan, *, reverse: bool) -> Tensor:
    """The state that each span begins with: the sum over those before it (after it, if ``reverse``), or over all."""
    if not plan.CAUSAL:
        return state_SX.sum(1)
    heads, spans, size = state_SX.shape
    result = torch.empty_like(state_SX)
    exclusive_scan[(heads, triton.cdiv(size, SCAN))](state_SX, result, spans, SIZE=size, REVERSE=reverse, TILE=SCAN)
    return result


def key_state(inputs: Inputs, plan: Plan) -> Tensor:
    """The state of all keys (BH, X), or, if causal, that of those before each span (BH, S, X)."""
    key, value = inputs.key_BHMD, inputs.value_BHME
    grid, span = _grid(key, plan)
    states = _states(grid, plan, key.device)
    key_sums[grid](
        _tokens(key), _tokens(value), _table(inputs.cos_ND), _table(inputs.sin_ND), _seen(inputs.mask_BM),
        states, key.shape[2], span, plan, num_warps=_warps(plan),
    )  # fmt: skip
    return _joined(states, plan, reverse=False)


def forward(inputs: Inputs, state: Tensor, plan: Plan, options: Options) -> Tensor:
    """out (B, H, N, E) in value's dtype, its heads and tokens lying in memory as those of the values do."""
    query, key, value = inputs[:3]
    count = query.shape[2]
    out = empty_like(value, count)
    grid, span = _grid(query, plan)
    outputs[grid](
        _tokens(query), _tokens(key), _tokens(value), _tokens(out), _table(inputs.cos_ND), _table(inputs.sin_ND),
        _seen(inputs.mask_BM), inputs.bounds_2H, _floor(inputs, options), state, count, span, plan,
        num_warps=_warps(plan),
    )  # fmt: skip
    return out


def backward(
    grad: Tensor, inputs: Inputs, state: Tensor, plan: Plan, options: Options
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and ``bounds_2H``, from that of the output and the state that ``forward`` took."""
    query, key, value, bounds = inputs[:4]
    rope, mask = (_table(inputs.cos_ND), _table(inputs.sin_ND)), _seen(inputs.mask_BM)
    grads = [torch.empty_like(x) for x in inputs[:3]]
    rows = [_tokens(query.new_empty(query.shape[:3], dtype=torch.float32)) for _ in range(2)]

    grid, span = _grid(query, plan)
    parts = bounds.new_empty((*grid, 2))
    query_gradients[grid](
        _tokens(query), _tokens(key), _tokens(value), _tokens(grad), _tokens(grads[0]), *rope, mask, bounds,
        _floor(inputs, options), state, *rows, parts, query.shape[2], span, plan, num_warps=_warps(plan),
    )  # fmt: skip
    states = _states(grid, plan, query.device)
    query_sums[grid](
        _tokens(query), _tokens(grad), *rope, bounds, *rows, states, query.shape[2], span, plan, num_warps=_warps(plan)
    )
    grid, span = _grid(key, plan)
    key_gradients[grid](
        _tokens(query), _tokens(key), _tokens(value), _tokens(grad), _tokens(grads[1]), _tokens(grads[2]), *rope, mask,
        bounds, _joined(states, plan, reverse=True), *rows, key.shape[2], span, plan, num_warps=_warps(plan),
    )  # fmt: skip
    grad_bounds = parts.unflatten(0, query.shape[:2]).sum((0, 2)).mT.contiguous()
    return grads[0], grads[1], grads[2], grad_bounds


def _warps(plan: Plan) -> int:
    return 8 if plan.PAD_D * plan.PAD_E > 32 * 32 else 4
