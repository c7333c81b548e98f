"""Forward and backward over all blocks of a call.

Shapes: B batch, H heads, N queries, M keys, L tokens of a block, D head size, E value size, F = 2D features.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nala_platform.attention.blocks.both_ways import QueryGradient, Sums
from nala_platform.attention.blocks.call import Call, Rows
from nala_platform.attention.blocks.causal import STRETCH
from nala_platform.attention.blocks.words import Turns
from nala_platform.attention.layout import empty_like
from nala_platform.attention.masking import keys_seen
from nala_platform.attention.precision import bounded
from nala_platform.attention.signature import Options


def forward(call: Call, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, list[Tensor]]:
    """(out, what the backward pass is given: the means over the keys, two tensors a group of rows)."""
    out, kept = empty_like(value, query.shape[2]), []
    for rows in call.groups:
        sums = None
        for block in map(call.next, call.blocks(key.shape[2])):
            place = call.hidden(rows, block), call.turn(block), call.setting
            sums = _added(sums, call.kernels.key_sums(rows.of(key, block), rows.of(value, block), *place))
        means = _divided(sums, call.count(rows, key))
        alpha_range = rows.range(call.options.alpha_range)
        for block in map(call.next, call.blocks(query.shape[2])):
            place = call.turn(block), alpha_range, call.setting
            rows.of(out, block).copy_(call.kernels.query_out(rows.of(query, block), means, *place))
        kept += means
    return out, kept


def backward(
    call: Call, query: Tensor, key: Tensor, value: Tensor, grad: Tensor, kept: list[Tensor]
) -> tuple[Tensor | None, ...]:
    grads = Gradients.of(query, key, value, call.options)
    for number, rows in enumerate(call.groups):
        means = Sums(*kept[2 * number : 2 * number + 2])
        alpha_range = rows.range(call.options.alpha_range)
        grad_sums = None
        for block in map(call.next, call.blocks(query.shape[2])):
            place = call.turn(block), alpha_range, call.setting
            back = call.kernels.query_back(rows.of(query, block), rows.of(grad, block), means, *place)
            grad_sums = _added(grad_sums, back.sums)
            grads.put_query(rows, block, back)
        grad_means = _divided(grad_sums, call.count(rows, key))
        for block in map(call.next, call.blocks(key.shape[2])):
            place = call.hidden(rows, block), grad_means, call.turn(block), call.setting
            grads.put_key(rows, block, *call.kernels.key_back(rows.of(key, block), rows.of(value, block), *place))
    return grads.tuple()


def causal_forward(call: Call, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, list[Tensor]]:
    """(out, what the backward pass is given: the sums before each block but the first, two tensors each)."""
    out, kept, count_BN = empty_like(value, query.shape[2]), [], _counts(call, query)
    for rows in call.groups:
        sums = call.no_sums(rows, query, value)
        alpha_range = rows.range(call.options.alpha_range)
        for block in map(call.next, call.blocks(query.shape[2])):
            kept += sums if block.start else ()
            inputs, seen, turn = _in_stretches(call, rows, block, count_BN, query, key, value)
            own, sums = call.kernels.causal_out(*inputs, *seen, sums, turn, alpha_range, call.setting)
            rows.of(out, block).copy_(_joined(own, block))
    return out, kept


def causal_backward(
    call: Call, query: Tensor, key: Tensor, value: Tensor, grad: Tensor, kept: list[Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradients of query, key, value, low and high, from the last block to the first."""
    grads, count_BN = (
        Gradients.of(query, key, value, call.options),
        _counts(call, query),
    )
    blocks = call.blocks(query.shape[2])
    for number, rows in enumerate(call.groups):
        first = 2 * number * (len(blocks) - 1)
        alpha_range = rows.range(call.options.alpha_range)
        grad_sums = call.no_sums(rows, query, value)
        for place, block in reversed([*enumerate(blocks)]):
            call.next(block)
            before = first + 2 * (place - 1)
            sums = Sums(*kept[before : before + 2]) if place else call.no_sums(rows, query, value)
            inputs, seen, turn = _in_stretches(call, rows, block, count_BN, query, key, value, grad)
            rest = sums, grad_sums, turn, alpha_range, call.setting
            back, key_grad, value_grad = call.kernels.causal_back(*inputs, *seen, *rest)
            grad_sums = back.sums
            grads.put_query(rows, block, back._replace(query_BHLD=_joined(back.query_BHLD, block)))
            grads.put_key(rows, block, _joined(key_grad, block), _joined(value_grad, block))
    return grads.tuple()


def _in_stretches(
    call: Call, rows: Rows, block: slice, count_BN: Tensor, *tensors: Tensor
) -> tuple[list[Tensor], tuple[Tensor | None, Tensor], Turns | None]:
    """Tensors (B, H, T, C, X), which keys are hidden and how many each query sees (B, T, C), the rotation (T, C, …)."""
    stretch = min(STRETCH, call.length)

    def cut(x: Tensor, axis: int) -> Tensor:
        missing = -x.shape[axis] % stretch
        if missing:
            x = F.pad(x, (*(0, 0) * (x.ndim - 1 - axis), 0, missing))
        return x.unflatten(axis, (-1, stretch))

    hidden_BL, turn = call.hidden(rows, block), call.turn(block)
    return (
        [cut(rows.of(x, block), 2) for x in tensors],
        (None if hidden_BL is None else cut(hidden_BL, 1), cut(count_BN[rows.batch, block], 1)),
        None
        if turn is None
        else Turns(cut(turn.forth_L2P, 0), None if turn.back_L2P is None else cut(turn.back_L2P, 0)),
    )


def _counts(call: Call, query: Tensor) -> Tensor:
    """How many keys each query sees, at least 1, (B, N)."""
    return keys_seen(query, call.options.key_padding_mask).clamp_min(1)


def _joined(x_BHTCX: Tensor, block: slice) -> Tensor:
    return x_BHTCX.flatten(2, 3)[:, :, : block.stop - block.start]


class Gradients(NamedTuple):
    """Where the blocks put theirs."""

    query: Tensor
    key: Tensor
    value: Tensor
    bounds_H: tuple[Tensor | None, Tensor | None]
    """of low and high, where they are tensors"""

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, options: Options) -> "Gradients":
        low, high = (torch.zeros_like(bound) if isinstance(bound, Tensor) else None for bound in options.alpha_range)
        return cls(
            empty_like(query, query.shape[2]),
            empty_like(key, key.shape[2]),
            empty_like(value, value.shape[2]),
            (low, high),
        )

    def put_query(self, rows: Rows, block: slice, back: QueryGradient) -> None:
        """Write the block's; add to those of low and high."""
        rows.of(self.query, block).copy_(bounded(back.query_BHLD, self.query.dtype))
        for bound_H, own_BH in zip(self.bounds_H, (back.low_BH, back.high_BH), strict=True):
            if bound_H is not None:
                bound_H[rows.heads] += own_BH.sum(0)

    def put_key(self, rows: Rows, block: slice, key_BHLD: Tensor, value_BHLE: Tensor) -> None:
        """Write the block's."""
        rows.of(self.key, block).copy_(bounded(key_BHLD, self.key.dtype))
        rows.of(self.value, block).copy_(value_BHLE)

    def tuple(self) -> tuple[Tensor | None, ...]:
        """In the order of the inputs."""
        return self.query, self.key, self.value, *self.bounds_H


def _added(sums: Sums | None, more: Sums) -> Sums:
    return more if sums is None else Sums(*(whole.add_(part) for whole, part in zip(sums, more, strict=True)))


def _divided(sums: Sums | None, count: Tensor | float) -> Sums:
    assert sums is not None  # there is a key and a query, so there was a block
    count_F1 = count[..., None] if isinstance(count, Tensor) else count
    return Sums(sums.key_value_BHFE / count_F1, sums.key_BHF / count)
