"""The gradient kernels of the Triton backend; ``kernels`` says how all of them work, and its names hold here."""
# Triton types the arguments of a kernel itself; an annotation would mean something else to it.
# ruff: noqa: ANN001, ANN201
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import triton
import triton.language as tl

from nala_platform.attention.triton.features import (
    half,
    half_gradient,
    key_gradient,
    key_size,
    query_gradient,
    query_size,
    rotated,
    unrotated,
)
from nala_platform.attention.triton.kernels import dot, load_key_tile, lower, remaining, running
from nala_platform.attention.triton.tiles import (
    load_head,
    load_pair,
    load_rotation,
    load_row,
    load_state,
    load_value,
    place,
    state_row,
    store_head,
    store_row,
    store_value,
)


@triton.jit
def query_half(query, key, value_ME, rotation, grad_NE, pull_NM, state_DE, sum_D, SECOND: tl.constexpr,
               plan: tl.constexpr):  # fmt: skip
    """Of one half of the features: R^T (KV g) and z, each as ``half_gradient``; its state after the tile."""
    pull_ND = dot(grad_NE, tl.trans(state_DE), plan)
    own_ND = sum_D[None, :]
    if plan.CAUSAL:
        half_MD = half(key[1], key[0], key[2], SECOND, plan)
        own_ND += running(half_MD, plan)
        sum_D += tl.sum(half_MD, 0)
        half_MD = rotated(half_MD, rotation[0], rotation[1], plan)
        pull_ND += dot(pull_NM, half_MD, plan)
        state_DE += dot(tl.trans(half_MD), value_ME, plan)
    pull_ND = unrotated(pull_ND, rotation[0], rotation[1], plan)
    pull_along_ND, pull_across_ND = half_gradient(pull_ND, query[0], query[2], SECOND, plan)
    own_along_ND, own_across_ND = half_gradient(own_ND, query[0], query[2], SECOND, plan)
    return pull_along_ND, pull_across_ND, own_along_ND, own_across_ND, state_DE, sum_D


@triton.jit
def store_bounds(grad_bounds, low_N1, high_N1):
    """A program's part of the gradients of low and high."""
    at = grad_bounds + 2 * (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1))
    tl.store(at, tl.sum(low_N1))
    tl.store(at + 1, tl.sum(high_N1))


@triton.jit
def query_gradients(
    query, key, value, grad, grad_query, cos, sin, mask, bounds, floor, state,
    denominator, grad_denominator, grad_bounds, count, span, plan: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries; d and dL/dd, for those of the keys; each program's part of those of low and high."""
    batch, head, begin = place(span, plan)
    low, high = tl.load(bounds + head), tl.load(bounds + plan.HEADS + head)
    first_DE, second_DE, first_D, second_D = load_state(state, state_row(plan), plan)
    low_N1, high_N1 = tl.zeros((plan.BLOCK, 1), tl.float32), tl.zeros((plan.BLOCK, 1), tl.float32)
    for offset in range(0, span, plan.BLOCK):
        start = begin + offset
        query_ND = load_head(query, batch, head, start, count, plan)
        size_ND, norm_N1 = query_size(query_ND, low, high, plan)
        tile = (query_ND, size_ND, norm_N1)
        rotation = load_rotation(cos, sin, start, count, plan)
        grad_NE = load_value(grad, batch, head, start, count, plan)
        key_tile, value_ME = load_key_tile(key, value, mask, batch, head, start, count, plan)
        pull_NM = lower(dot(grad_NE, tl.trans(value_ME), plan), plan) if plan.CAUSAL else 0.0
        pull_along_ND, pull_across_ND, own_along_ND, own_across_ND, first_DE, first_D = query_half(
            tile, key_tile, value_ME, rotation, grad_NE, pull_NM, first_DE, first_D, False, plan
        )
        pull_a_ND, pull_b_ND, own_a_ND, own_b_ND, second_DE, second_D = query_half(
            tile, key_tile, value_ME, rotation, grad_NE, pull_NM, second_DE, second_D, True, plan
        )
        denominator_N1 = load_row(floor, batch, head, start, count, 1.0, plan)
        denominator_N1 += tl.sum(size_ND * (own_along_ND + own_a_ND), 1)[:, None]
        along_ND, across_ND = (
            (pull_along_ND + pull_a_ND) / denominator_N1,
            (pull_across_ND + pull_b_ND) / denominator_N1,
        )
        grad_N1 = -tl.sum(size_ND * along_ND, 1)[:, None] / denominator_N1
        store_row(denominator, denominator_N1, batch, head, start, count, plan)
        store_row(grad_denominator, grad_N1, batch, head, start, count, plan)
        along_ND += grad_N1 * (own_along_ND + own_a_ND)
        across_ND += grad_N1 * (own_across_ND + own_b_ND)
        grad_query_ND, grad_low_N1, grad_high_N1 = query_gradient(query_ND, low, high, along_ND, across_ND, plan)
        store_head(grad_query, grad_query_ND, batch, head, start, count, plan)
        low_N1, high_N1 = low_N1 + grad_low_N1, high_N1 + grad_high_N1
    store_bounds(grad_bounds, low_N1, high_N1)


@triton.jit
def load_query_tile(query, grad, denominator, grad_denominator, batch, head, start, count, low, high,
                    plan: tl.constexpr):  # fmt: skip
    """((queries, their size, their norm), dL/dnum, dL/dd) of a tile that sees its own keys; unused if not causal."""
    if plan.CAUSAL:
        query_ND = load_head(query, batch, head, start, count, plan)
        size_ND, norm_N1 = query_size(query_ND, low, high, plan)
        grad_NE = load_value(grad, batch, head, start, count, plan)
        grad_NE = grad_NE / load_row(denominator, batch, head, start, count, 1.0, plan)
        grad_N1 = load_row(grad_denominator, batch, head, start, count, 0.0, plan)
    else:
        query_ND, size_ND, norm_N1, grad_NE, grad_N1 = 0.0, 0.0, 0.0, 0.0, 0.0
    return (query_ND, size_ND, norm_N1), grad_NE, grad_N1


@triton.jit
def key_half(key, query, value_ME, rotation, grad_NE, grad_N1, pull_NM, grad_value_ME, scores_NM, state_DE, sum_D,
             SECOND: tl.constexpr, plan: tl.constexpr):  # fmt: skip
    """Of one half of the features: dL/dphi_k as ``half_gradient``; the values' gradient and the scores so far."""
    half_MD = rotated(half(key[1], key[0], key[2], SECOND, plan), rotation[0], rotation[1], plan)
    pull_MD = dot(value_ME, tl.trans(state_DE), plan)
    grad_value_ME += dot(half_MD, state_DE, plan)
    own_MD = sum_D[None, :]
    if plan.CAUSAL:
        half_ND = half(query[1], query[0], query[2], SECOND, plan)
        own_MD += remaining(half_ND * grad_N1, plan)
        sum_D += tl.sum(half_ND * grad_N1, 0)
        half_ND = rotated(half_ND, rotation[0], rotation[1], plan)
        pull_MD += dot(tl.trans(pull_NM), half_ND, plan)
        scores_NM += dot(half_ND, tl.trans(half_MD), plan)
        state_DE += dot(tl.trans(half_ND), grad_NE, plan)
    pull_MD = unrotated(pull_MD, rotation[0], rotation[1], plan) + own_MD
    along_MD, across_MD = half_gradient(pull_MD, key[0], key[2], SECOND, plan)
    return along_MD, across_MD, grad_value_ME, scores_NM, state_DE, sum_D


@triton.jit
def key_gradients(
    query, key, value, grad, grad_key, grad_value, cos, sin, mask, bounds, state,
    denominator, grad_denominator, count, span, plan: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values, from the state of the queries that see them: all, or those of the spans after.

    dL/dphi_k_m = R_m^T (G v_m) + h and dL/dv_m = G^T (R_m phi_k_m), with G and h the sums of ``query_sums`` over the
    queries n >= m, or over all. The tiles of a causal span are taken from its last to its first.
    """
    batch, head, begin = place(span, plan)
    low, high = tl.load(bounds + head), tl.load(bounds + plan.HEADS + head)
    first_DE, second_DE, first_D, second_D = load_state(state, state_row(plan), plan)
    for offset in range(0, span, plan.BLOCK):
        start = begin + span - plan.BLOCK - offset
        key_MD, value_ME = load_pair(key, value, mask, batch, head, start, count, plan)
        size_MD, norm_M1 = key_size(key_MD, plan)
        tile = (key_MD, size_MD, norm_M1)
        rotation = load_rotation(cos, sin, start, count, plan)
        query_tile, grad_NE, grad_N1 = load_query_tile(
            query, grad, denominator, grad_denominator, batch, head, start, count, low, high, plan
        )
        pull_NM = lower(dot(grad_NE, tl.trans(value_ME), plan), plan) if plan.CAUSAL else 0.0
        scores_NM = tl.zeros((plan.BLOCK, plan.BLOCK), tl.float32)
        grad_value_ME = tl.zeros((plan.BLOCK, plan.PAD_E), tl.float32)
        along_MD, across_MD, grad_value_ME, scores_NM, first_DE, first_D = key_half(
            tile, query_tile, value_ME, rotation, grad_NE, grad_N1, pull_NM, grad_value_ME, scores_NM,
            first_DE, first_D, False, plan,
        )  # fmt: skip
        more_along_MD, more_across_MD, grad_value_ME, scores_NM, second_DE, second_D = key_half(
            tile, query_tile, value_ME, rotation, grad_NE, grad_N1, pull_NM, grad_value_ME, scores_NM,
            second_DE, second_D, True, plan,
        )  # fmt: skip
        if plan.CAUSAL:
            grad_value_ME += dot(tl.trans(lower(scores_NM, plan)), grad_NE, plan)
        grad_key_MD = key_gradient(key_MD, along_MD + more_along_MD, across_MD + more_across_MD, plan)
        store_head(grad_key, grad_key_MD, batch, head, start, count, plan)
        store_value(grad_value, grad_value_ME, batch, head, start, count, plan)
