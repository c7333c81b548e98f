"""Reading and writing tiles and states, in Triton's language.

A tile is BLOCK consecutive tokens of one head, in float32 whatever the dtype in memory. A state is what a span of keys
leaves behind (or, in the backward pass, a span of queries): the sums over its tokens of (R phi) y^T, (2D, E), and of
phi, (2D,), in the two halves "first" and "second" of the features. In memory a state is one row of 2D(E + 1) numbers.

Shapes: N tokens of a tile, D head size and E value size, padded to powers of two with columns of 0.
"""
# Triton types the arguments of a kernel itself; an annotation would mean something else to it.
# ruff: noqa: ANN001, ANN201
# pyright: reportAttributeAccessIssue=false

import triton
import triton.language as tl


@triton.jit
def place(span, plan: tl.constexpr):
    """(batch, head, first token) of a program whose span is ``span`` tokens, a multiple of BLOCK, long."""
    batch_head = tl.program_id(0).to(tl.int64)
    return batch_head // plan.HEADS, batch_head % plan.HEADS, tl.program_id(1).to(tl.int64) * span


@triton.jit
def addresses(tensor, batch, head, start, count, SIZE: tl.constexpr, PAD: tl.constexpr, plan: tl.constexpr):
    """Where the tile's numbers stand in a (B, H, N, SIZE) tensor of any strides but a last one of 1; which exist."""
    row_N, column_S = tl.arange(0, plan.BLOCK), tl.arange(0, PAD)
    base = tensor.data + batch * tensor.stride_b + head * tensor.stride_h + start * tensor.stride_n
    exists_NS = (row_N < count - start)[:, None] & (column_S < SIZE)[None, :]
    return base + row_N[:, None] * tensor.stride_n + column_S[None, :], exists_NS


@triton.jit
def load_head(tensor, batch, head, start, count, plan: tl.constexpr):
    """A tile of D columns; 0 beyond the last token and column."""
    at_ND, exists_ND = addresses(tensor, batch, head, start, count, plan.D, plan.PAD_D, plan)
    return tl.load(at_ND, mask=exists_ND, other=0.0).to(tl.float32)


@triton.jit
def load_value(tensor, batch, head, start, count, plan: tl.constexpr):
    """A tile of E columns; 0 beyond the last token and column."""
    at_NE, exists_NE = addresses(tensor, batch, head, start, count, plan.E, plan.PAD_E, plan)
    return tl.load(at_NE, mask=exists_NE, other=0.0).to(tl.float32)


@triton.jit
def load_seen(mask, batch, start, count, plan: tl.constexpr):
    """(N, 1): whether a key may be read at all."""
    row_N = tl.arange(0, plan.BLOCK)
    at_N = mask.data + batch * mask.stride_b + (start + row_N) * mask.stride_n
    return (tl.load(at_N, mask=row_N < count - start, other=1) == 0)[:, None]


@triton.jit
def load_pair(key, value, mask, batch, head, start, count, plan: tl.constexpr):
    """Keys and values, 0 where masked: what stands there, NaN included, reaches no sum."""
    key_ND = load_head(key, batch, head, start, count, plan)
    value_NE = load_value(value, batch, head, start, count, plan)
    if plan.MASKED:
        seen_N1 = load_seen(mask, batch, start, count, plan)
        key_ND, value_NE = tl.where(seen_N1, key_ND, 0.0), tl.where(seen_N1, value_NE, 0.0)
    return key_ND, value_NE


@triton.jit
def load_rotation(cos, sin, start, count, plan: tl.constexpr):
    """(cos, the sines with the sign -, + of their place in a pair), (N, D); nothing of use without rope."""
    if plan.ROPE:
        sign_D = tl.where(tl.arange(0, plan.PAD_D) % 2 == 0, -1.0, 1.0)
        cos_ND = load_head(cos, 0, 0, start, count, plan)
        signed_ND = load_head(sin, 0, 0, start, count, plan) * sign_D[None, :]
    else:
        cos_ND, signed_ND = 0.0, 0.0
    return cos_ND, signed_ND


@triton.jit
def load_row(tensor, batch, head, start, count, other, plan: tl.constexpr):
    """(N, 1): one number a token of a (B, H, N) tensor, any stride being 0 where it does not vary."""
    row_N = tl.arange(0, plan.BLOCK)
    base = tensor.data + batch * tensor.stride_b + head * tensor.stride_h + start * tensor.stride_n
    return tl.load(base + row_N * tensor.stride_n, mask=row_N < count - start, other=other)[:, None]


@triton.jit
def store_row(tensor, x_N1, batch, head, start, count, plan: tl.constexpr):
    row_N = tl.arange(0, plan.BLOCK)
    base = tensor.data + batch * tensor.stride_b + head * tensor.stride_h + start * tensor.stride_n
    tl.store(base + row_N * tensor.stride_n, tl.sum(x_N1, 1), mask=row_N < count - start)


@triton.jit
def store_head(tensor, x_ND, batch, head, start, count, plan: tl.constexpr):
    """The gradient of a query or key, which saturates at the dtype's largest number as ``widen_bounded``'s does."""
    at_ND, exists_ND = addresses(tensor, batch, head, start, count, plan.D, plan.PAD_D, plan)
    top = tensor.top
    size_ND = tl.abs(x_ND)
    saturates_ND = (size_ND > top) & (size_ND < float("inf"))
    x_ND = tl.where(saturates_ND, tl.where(x_ND < 0, -top, top), x_ND)
    tl.store(at_ND, x_ND.to(tensor.data.dtype.element_ty), mask=exists_ND)


@triton.jit
def store_value(tensor, x_NE, batch, head, start, count, plan: tl.constexpr):
    at_NE, exists_NE = addresses(tensor, batch, head, start, count, plan.E, plan.PAD_E, plan)
    tl.store(at_NE, x_NE.to(tensor.data.dtype.element_ty), mask=exists_NE)


@triton.jit
def state_addresses(state, row, plan: tl.constexpr):
    """Of the first halves of a state's two parts, which of their numbers exist, and how far on the second ones are."""
    d_D, e_E = tl.arange(0, plan.PAD_D), tl.arange(0, plan.PAD_E)
    base = state + row * (2 * plan.D * (plan.E + 1))
    exists_DE = (d_D < plan.D)[:, None] & (e_E < plan.E)[None, :]
    return base + d_D[:, None] * plan.E + e_E[None, :], exists_DE, base + 2 * plan.D * plan.E + d_D, d_D < plan.D


@triton.jit
def load_state(state, row, plan: tl.constexpr):
    """(first (D, E), second (D, E), first (D,), second (D,)) of row ``row``."""
    at_DE, exists_DE, at_D, exists_D = state_addresses(state, row, plan)
    first_DE = tl.load(at_DE, mask=exists_DE, other=0.0)
    second_DE = tl.load(at_DE + plan.D * plan.E, mask=exists_DE, other=0.0)
    first_D = tl.load(at_D, mask=exists_D, other=0.0)
    second_D = tl.load(at_D + plan.D, mask=exists_D, other=0.0)
    return first_DE, second_DE, first_D, second_D


@triton.jit
def store_state(state, row, first_DE, second_DE, first_D, second_D, plan: tl.constexpr):
    at_DE, exists_DE, at_D, exists_D = state_addresses(state, row, plan)
    tl.store(at_DE, first_DE, mask=exists_DE)
    tl.store(at_DE + plan.D * plan.E, second_DE, mask=exists_DE)
    tl.store(at_D, first_D, mask=exists_D)
    tl.store(at_D + plan.D, second_D, mask=exists_D)


@triton.jit
def zero_state(plan: tl.constexpr):
    zero_DE, zero_D = tl.zeros((plan.PAD_D, plan.PAD_E), tl.float32), tl.zeros((plan.PAD_D,), tl.float32)
    return zero_DE, zero_DE, zero_D, zero_D


@triton.jit
def state_row(plan: tl.constexpr):
    """The row of the state that a program begins with: its own span's, or the one that all of a head share."""
    row = tl.program_id(0).to(tl.int64)
    if plan.CAUSAL:
        row = row * tl.num_programs(1) + tl.program_id(1)
    return row
