"""How one call is cut into blocks.

Shapes: B batch, H heads, N queries, M keys, L tokens of a block, D head size, E value size, F = 2D features.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from nala_platform.attention.blocks.both_ways import (
    QueryGradient,
    Setting,
    Sums,
    key_back,
    key_sums,
    query_back,
    query_out,
)
from nala_platform.attention.blocks.causal import STRETCH, causal_back, causal_out
from nala_platform.attention.blocks.closed_form import Map
from nala_platform.attention.blocks.words import EAGER, Scratch, Turns, Words, nowhere, turns
from nala_platform.attention.precision import widest
from nala_platform.attention.signature import AlphaRange, Options, Rope

CACHED = 1 << 19
"""Numbers of one tensor of a block on a CPU: two megabytes in float32. With half of it starting the operators costs
more than the cache saves, with twice as much nothing is won (two cores with 2 MB of second-level cache each)."""
FRESH = 1 << 16
"""Numbers of one tensor of a whole call on a CPU up to which results get memory of their own: malloc still hands it out
sooner than `Scratch`, which saves mapping it."""
LAUNCHED = 1 << 25
"""On other devices: so many that starting a kernel is no part of the time, and still no second copy of a long input."""
SHORTEST = 128
"""Tokens of a block at least: with fewer the products are too thin."""
KEPT = 25
"""Share of queries, keys and values to which the sums that the causal form keeps of each block come: one 25th."""


class Kernels(NamedTuple):
    """The functions of ``both_ways`` and ``causal``, as they are or compiled, and the words they are written in."""

    words: Words
    key_sums: Callable[..., Sums]
    query_out: Callable[..., Tensor]
    query_back: Callable[..., QueryGradient]
    key_back: Callable[..., tuple[Tensor, Tensor]]
    causal_out: Callable[..., tuple[Tensor, Sums]]
    causal_back: Callable[..., tuple[QueryGradient, Tensor, Tensor]]


AS_THEY_ARE = Kernels(EAGER, key_sums, query_out, query_back, key_back, causal_out, causal_back)


class Rows(NamedTuple):
    """Some heads of some samples, which a block takes together."""

    batch: slice
    heads: slice

    def of(self, x_BHXX: Tensor, tokens: slice = slice(None)) -> Tensor:
        """Their part of a tensor (B, H, N, …), of some tokens."""
        whole = self.batch == self.heads == slice(None) and tokens in (slice(None), slice(0, x_BHXX.shape[2]))
        # no view where it is the whole: for a short input views are a good part of the time
        return x_BHXX if whole else x_BHXX[self.batch, self.heads, tokens]

    def range(self, alpha_range: AlphaRange) -> AlphaRange:
        low, high = (bound[self.heads] if isinstance(bound, Tensor) else bound for bound in alpha_range)
        return low, high


def cut(batch: int, heads: int, tokens: int, *, width: int, budget: int, least: int) -> tuple[list[Rows], int]:
    """(groups of rows, tokens of a block) such that rows x tokens x width is about ``budget``.

    All rows go together where blocks of ``least`` tokens allow it: a product over many is shared out better over cores
    than one.
    """
    least = min(least, tokens)
    rows = max(1, min(batch * heads, budget // (least * width)))
    if rows >= heads:
        samples = rows // heads
        groups = [Rows(slice(first, first + samples), slice(None)) for first in range(0, batch, samples)]
        groups = groups if len(groups) > 1 else [Rows(slice(None), slice(None))]
        rows = heads * min(samples, batch)
    else:
        groups = [
            Rows(slice(sample, sample + 1), slice(first, first + rows))
            for sample in range(batch)
            for first in range(0, heads, rows)
        ]
    return groups, max(least, min(tokens, budget // (rows * width)))


class Call(NamedTuple):
    """One call cut into blocks, and what is the same in all of them."""

    groups: list[Rows]
    length: int
    turns: Callable[[slice], Turns] | None
    setting: Setting
    options: Options
    kernels: Kernels

    def blocks(self, tokens: int) -> list[slice]:
        """Stretches of ``length`` tokens; the last may be shorter."""
        return [slice(first, min(first + self.length, tokens)) for first in range(0, tokens, self.length)]

    def next(self, block: slice) -> slice:
        """The block; what the one before has given is no longer needed."""
        new = self.setting.words.new
        if isinstance(new, Scratch):
            new.again()
        return block

    def turn(self, block: slice) -> Turns | None:
        """The rotation of its tokens."""
        return None if self.turns is None else self.turns(block)

    def hidden(self, rows: Rows, block: slice) -> Tensor | None:
        """Which keys are ignored, (B, L)."""
        mask_BM = self.options.key_padding_mask
        return None if mask_BM is None else mask_BM[rows.batch, block]

    def count(self, rows: Rows, key: Tensor) -> Tensor | float:
        """How many keys a query sees, at least 1; broadcasts against (B, H, F)."""
        mask_BM = self.options.key_padding_mask
        if mask_BM is None:
            return float(key.shape[2])
        return (~mask_BM[rows.batch]).sum(1).clamp_min(1)[:, None, None]

    def no_sums(self, rows: Rows, query: Tensor, value: Tensor) -> Sums:
        """Sums over no key."""
        part = rows.of(query)
        shape, features, dtype = part.shape[:2], 2 * part.shape[-1], widest(query)
        return Sums(
            query.new_zeros((*shape, features, value.shape[-1]), dtype=dtype),
            query.new_zeros((*shape, features), dtype=dtype),
        )


def cut_up(query: Tensor, value: Tensor, options: Options, kernels: Kernels, *, both: bool) -> Call:
    """``both``: with the opposite rotations, for a backward pass."""
    size, values = query.shape[-1], value.shape[-1]
    least = SHORTEST
    if options.is_causal:
        least = max(least, -(-KEPT * 2 * size * (values + 1) // ((2 * size + values) * STRETCH)) * STRETCH)
    budget = CACHED if query.device.type == "cpu" else LAUNCHED
    tokens = max(query.shape[2], value.shape[2])  # few queries must not cut many keys into as short blocks
    batch, heads = query.shape[:2]
    groups, length = cut(batch, heads, tokens, width=max(size, values), budget=budget, least=least)
    if options.is_causal and length > STRETCH:
        length -= length % STRETCH
    words, whole = kernels.words, length >= tokens
    if words.reuses and query.device.type == "cpu" and batch * heads * tokens * max(size, values) > FRESH:
        words = words._replace(new=Scratch())
    what = Map(options.direction, options.alpha_gate, options.key_power)
    rotation = None if options.rope is None else _rotation(options.rope, whole, widest(query), words, both=both)
    return Call(groups, length, rotation, Setting(what, words, options.eps), options, kernels)


def _rotation(rope: Rope, whole: bool, dtype: torch.dtype, words: Words, *, both: bool) -> Callable[[slice], Turns]:
    """``Call.turns``: made once where a block is the whole input, else with each, as all would be a second input."""
    if whole:
        made = turns(rope, slice(None), dtype, words._replace(new=nowhere), both=both)
        return lambda block: made
    return partial(turns, rope, dtype=dtype, words=words, both=both)
