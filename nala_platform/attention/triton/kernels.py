"""The kernels of the Triton backend: sums over keys or queries, outputs, and the gradients.

One program takes one head of one sequence and a span of ``span`` tokens, BLOCK at a time. Without causality a span
only spreads the work; with it, every program starts from the state of all spans before (or, going backward, after) its
own, and adds its own tokens as it goes. In a tile the causal part is a lower triangle. No kernel adds to what another
writes, so results are the same at every run.

With numerator sum_f Q_f A_f, Q = R phi_q, and denominator d: dL/dnum = g / d and dL/dd = -(g . out) / d, where g is the
gradient of the output. Since g . num = Q . (KV g), the gradient of the queries needs neither the output nor E.

Names: ``first`` and ``second`` are the two halves of the features; ``turned`` is rotated.
Shapes: N tokens of a tile, M those of the same tile as keys, D head size, E value size.
"""
# Triton types the arguments of a kernel itself; an annotation would mean something else to it.
# ruff: noqa: ANN001, ANN201
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import triton
import triton.language as tl

from nala_platform.attention.triton.features import half, key_size, query_size, rotated
from nala_platform.attention.triton.tiles import (
    load_head,
    load_pair,
    load_rotation,
    load_row,
    load_state,
    load_value,
    place,
    state_row,
    store_state,
    store_value,
    zero_state,
)


@triton.jit
def dot(a, b, plan: tl.constexpr):
    return tl.dot(a, b, input_precision=plan.PRECISION)


@triton.jit
def lower(x_NM, plan: tl.constexpr):
    """x where m <= n, else 0."""
    n_N = tl.arange(0, plan.BLOCK)
    return tl.where(n_N[:, None] >= n_N[None, :], x_NM, 0.0)


@triton.jit
def running(x_ND, plan: tl.constexpr):
    """The sums over the tile's tokens up to each, itself included."""
    return dot(lower(tl.full((plan.BLOCK, plan.BLOCK), 1.0, tl.float32), plan), x_ND, plan)


@triton.jit
def remaining(x_ND, plan: tl.constexpr):
    """The sums over the tile's tokens from each on, itself included."""
    return dot(tl.trans(lower(tl.full((plan.BLOCK, plan.BLOCK), 1.0, tl.float32), plan)), x_ND, plan)


@triton.jit
def load_key_tile(key, value, mask, batch, head, start, count, plan: tl.constexpr):
    """((keys, their size, their norm), values) of a tile that causal queries also see; without causality unused."""
    if plan.CAUSAL:
        key_MD, value_ME = load_pair(key, value, mask, batch, head, start, count, plan)
        size_MD, norm_M1 = key_size(key_MD, plan)
    else:
        key_MD, size_MD, norm_M1, value_ME = 0.0, 0.0, 0.0, 0.0
    return (key_MD, size_MD, norm_M1), value_ME


@triton.jit
def key_sums(key, value, cos, sin, mask, state, count, span, plan: tl.constexpr):
    """The state that the keys of each span leave, one row a span."""
    batch, head, begin = place(span, plan)
    first_DE, second_DE, first_D, second_D = zero_state(plan)
    for offset in range(0, span, plan.BLOCK):
        start = begin + offset
        key_ND, value_NE = load_pair(key, value, mask, batch, head, start, count, plan)
        cos_ND, signed_ND = load_rotation(cos, sin, start, count, plan)
        size_ND, norm_N1 = key_size(key_ND, plan)
        half_ND = half(size_ND, key_ND, norm_N1, False, plan)
        first_D += tl.sum(half_ND, 0)
        first_DE += dot(tl.trans(rotated(half_ND, cos_ND, signed_ND, plan)), value_NE, plan)
        half_ND = half(size_ND, key_ND, norm_N1, True, plan)
        second_D += tl.sum(half_ND, 0)
        second_DE += dot(tl.trans(rotated(half_ND, cos_ND, signed_ND, plan)), value_NE, plan)
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    store_state(state, row, first_DE, second_DE, first_D, second_D, plan)


@triton.jit
def query_sums(query, grad, cos, sin, bounds, denominator, grad_denominator, state, count, span, plan: tl.constexpr):
    """The same of the queries: sums of (R phi_q) dL/dnum^T and of phi_q dL/dd, from ``query_gradients``' two rows."""
    batch, head, begin = place(span, plan)
    low, high = tl.load(bounds + head), tl.load(bounds + plan.HEADS + head)
    first_DE, second_DE, first_D, second_D = zero_state(plan)
    for offset in range(0, span, plan.BLOCK):
        start = begin + offset
        query_ND = load_head(query, batch, head, start, count, plan)
        cos_ND, signed_ND = load_rotation(cos, sin, start, count, plan)
        grad_NE = load_value(grad, batch, head, start, count, plan)
        grad_NE = grad_NE / load_row(denominator, batch, head, start, count, 1.0, plan)
        grad_N1 = load_row(grad_denominator, batch, head, start, count, 0.0, plan)
        size_ND, norm_N1 = query_size(query_ND, low, high, plan)
        half_ND = half(size_ND, query_ND, norm_N1, False, plan)
        first_D += tl.sum(half_ND * grad_N1, 0)
        first_DE += dot(tl.trans(rotated(half_ND, cos_ND, signed_ND, plan)), grad_NE, plan)
        half_ND = half(size_ND, query_ND, norm_N1, True, plan)
        second_D += tl.sum(half_ND * grad_N1, 0)
        second_DE += dot(tl.trans(rotated(half_ND, cos_ND, signed_ND, plan)), grad_NE, plan)
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    store_state(state, row, first_DE, second_DE, first_D, second_D, plan)


@triton.jit
def exclusive_scan(state, result, spans, SIZE: tl.constexpr, REVERSE: tl.constexpr, TILE: tl.constexpr):
    """result[s] = the sum of state over the spans before s, or, if REVERSE, after s; (rows, spans, SIZE).

    By shifted sums: "inclusive - own" would be all rounding after a span with large keys.
    """
    s_S, f_F = tl.arange(0, TILE), tl.program_id(1) * TILE + tl.arange(0, TILE)
    base = tl.program_id(0).to(tl.int64) * spans * SIZE
    total_F = tl.zeros((TILE,), tl.float32)
    for begin in range(0, spans, TILE):
        into_S = begin + s_S
        from_S = into_S - 1
        exists_SF = ((from_S >= 0) & (into_S < spans))[:, None] & (f_F < SIZE)[None, :]
        if REVERSE:
            into_S, from_S = spans - 1 - into_S, spans - 1 - from_S
        state_SF = tl.load(state + base + from_S[:, None] * SIZE + f_F[None, :], mask=exists_SF, other=0.0)
        result_SF = total_F[None, :] + tl.cumsum(state_SF, 0)
        writes_SF = ((into_S >= 0) & (into_S < spans))[:, None] & (f_F < SIZE)[None, :]
        tl.store(result + base + into_S[:, None] * SIZE + f_F[None, :], result_SF, mask=writes_SF)
        total_F += tl.sum(state_SF, 0)


@triton.jit
def output_half(query, key, value_ME, rotation, sums_NE, scores_NM, state_DE, sum_D, SECOND: tl.constexpr,
                plan: tl.constexpr):  # fmt: skip
    """What one half of the features adds to numerator, in-tile scores and denominator; its state after the tile.

    ``query`` and ``key`` are (x, size, norm) of a tile, ``rotation`` is (cos, signed sines).
    """
    half_ND = half(query[1], query[0], query[2], SECOND, plan)
    turned_ND = rotated(half_ND, rotation[0], rotation[1], plan)
    own_ND = sum_D[None, :]
    sums_NE += dot(turned_ND, state_DE, plan)
    if plan.CAUSAL:
        half_MD = half(key[1], key[0], key[2], SECOND, plan)
        own_ND += running(half_MD, plan)
        sum_D += tl.sum(half_MD, 0)
        turned_DM = tl.trans(rotated(half_MD, rotation[0], rotation[1], plan))
        scores_NM += dot(turned_ND, turned_DM, plan)
        state_DE += dot(turned_DM, value_ME, plan)
    return sums_NE, scores_NM, tl.sum(half_ND * own_ND, 1)[:, None], state_DE, sum_D


@triton.jit
def outputs(query, key, value, out, cos, sin, mask, bounds, floor, state, count, span, plan: tl.constexpr):
    """out_n = Q_n . KV / (phi_n . z + floor_n), where floor is eps times the number of keys that n sees."""
    batch, head, begin = place(span, plan)
    low, high = tl.load(bounds + head), tl.load(bounds + plan.HEADS + head)
    first_DE, second_DE, first_D, second_D = load_state(state, state_row(plan), plan)
    for offset in range(0, span, plan.BLOCK):
        start = begin + offset
        query_ND = load_head(query, batch, head, start, count, plan)
        size_ND, norm_N1 = query_size(query_ND, low, high, plan)
        query_tile = (query_ND, size_ND, norm_N1)
        key_tile, value_ME = load_key_tile(key, value, mask, batch, head, start, count, plan)
        rotation = load_rotation(cos, sin, start, count, plan)
        denominator_N1 = load_row(floor, batch, head, start, count, 1.0, plan)
        sums_NE = tl.zeros((plan.BLOCK, plan.PAD_E), tl.float32)
        scores_NM = tl.zeros((plan.BLOCK, plan.BLOCK), tl.float32)
        sums_NE, scores_NM, added_N1, first_DE, first_D = output_half(
            query_tile, key_tile, value_ME, rotation, sums_NE, scores_NM, first_DE, first_D, False, plan
        )
        denominator_N1 += added_N1
        sums_NE, scores_NM, added_N1, second_DE, second_D = output_half(
            query_tile, key_tile, value_ME, rotation, sums_NE, scores_NM, second_DE, second_D, True, plan
        )
        denominator_N1 += added_N1
        if plan.CAUSAL:
            sums_NE += dot(lower(scores_NM, plan), value_ME, plan)
        store_value(out, sums_NE / denominator_N1, batch, head, start, count, plan)
