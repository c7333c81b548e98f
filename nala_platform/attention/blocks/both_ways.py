"""What one block of tokens adds to NaLa's sums and takes from them, and the gradients of both.

The operator is ``out_i = (R_i phi_q_i) . S / (phi_q_i . z + eps)`` with the means ``S = mean_j R_j phi_k_j v_j^T`` and
``z = mean_j phi_k_j``, so a block of keys only adds to the sums, a block of queries only reads the means, and with
``e_i = -(g_i . out_i) / den_i``, ``y_i = (g_i / den_i) S^T``

    dS = sum_i R_i phi_q_i (g_i / den_i)^T      dz = sum_i e_i phi_q_i      dphi_q_i = R_i^T y_i + e_i z
    dv_j = R_j phi_k_j dS                       dphi_k_j = R_j^T (v_j dS^T) + dz

where ``g_i . out_i = (R_i phi_q_i . y_i)`` asks for no copy of the output. ``causal`` has the causal form.

Shapes: B batch, H heads, L tokens of the block, D head size, E value size, F = 2D features.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nala_platform.attention.blocks.closed_form import (
    Bound,
    Map,
    Query,
    key_gradient,
    key_map,
    query_gradient,
    query_map,
)
from nala_platform.attention.blocks.words import Turns, Words, rotated
from nala_platform.attention.precision import widen
from nala_platform.attention.signature import AlphaRange


class Setting(NamedTuple):
    """What is the same in all blocks of one call."""

    what: Map
    words: Words
    eps: float


class Sums(NamedTuple):
    """Sums or means over keys, and their gradients."""

    key_value_BHFE: Tensor
    key_BHF: Tensor


class QueryGradient(NamedTuple):
    """What comes back from a block of queries."""

    query_BHLD: Tensor
    sums: Sums
    low_BH: Tensor
    high_BH: Tensor

    @classmethod
    def of(cls, query_BHLD: Tensor, by_exponent_BHL1: Tensor, query: Query, sums: Sums) -> "QueryGradient":
        """From the gradients of the queries and of their exponents low + (high - low) gate."""
        by_high_BHL1 = by_exponent_BHL1 * query.gate_L1
        low_BH, high_BH = ((x.flatten(2).sum(-1)) for x in (by_exponent_BHL1 - by_high_BHL1, by_high_BHL1))
        return cls(query_BHLD, sums, low_BH, high_BH)


def shaped(alpha_range: AlphaRange, query_BHLD: Tensor) -> tuple[Bound, Bound]:
    """(low, high) so that they broadcast against (B, H, L, 1), L one axis or more."""
    low, high = (
        bound.to(query_BHLD.dtype).view(-1, *(1,) * (query_BHLD.ndim - 2)) if isinstance(bound, Tensor) else bound
        for bound in alpha_range
    )
    return low, high


def shown(x_BHLD: Tensor, hidden_BL: Tensor | None) -> Tensor:
    """``x`` in the dtype of sums, with 0 at hidden keys: what stood there reaches no sum."""
    x_BHLD = widen(x_BHLD)
    return x_BHLD if hidden_BL is None else x_BHLD.masked_fill(hidden_BL[:, None, ..., None], 0.0)


def turned(x_BHLF: Tensor, turn: Turns | None, words: Words) -> Tensor:
    """Rotated features; without a rotation the same."""
    return x_BHLF if turn is None else rotated(x_BHLF, turn.forth_L2P, words.like(x_BHLF))


def turned_at_last(x_BHLF: Tensor, turn: Turns | None, words: Words) -> Tensor:
    """As ``turned``, for features that nobody asks for afterwards."""
    return x_BHLF if turn is None else words.turn(x_BHLF, turn.forth_L2P)


def turned_back(grad_BHLF: Tensor, turn: Turns | None, words: Words) -> Tensor:
    """The gradient of features from that of rotated ones, which is given up."""
    if turn is None:
        return grad_BHLF
    assert turn.back_L2P is not None  # a backward pass has it
    return words.turn(grad_BHLF, turn.back_L2P)


def key_sums(
    key_BHLD: Tensor, value_BHLE: Tensor, hidden_BL: Tensor | None, turn: Turns | None, setting: Setting
) -> Sums:
    """The sums over the keys of a block."""
    key = key_map(shown(key_BHLD, hidden_BL), setting.what, setting.words)
    key_BHF = key.feature_LF.sum(-2)
    rotated_BHLF = turned_at_last(key.feature_LF, turn, setting.words)
    return Sums(rotated_BHLF.mT @ shown(value_BHLE, hidden_BL), key_BHF)


def query_out(query_BHLD: Tensor, means: Sums, turn: Turns | None, alpha_range: AlphaRange, setting: Setting) -> Tensor:
    """What the queries of a block get, (B, H, L, E)."""
    query_BHLD = widen(query_BHLD)
    low, high = shaped(alpha_range, query_BHLD)
    query = query_map(query_BHLD, low, high, setting.what, setting.words)
    denominator_BHL1 = query.feature_LF @ means.key_BHF[..., None] + setting.eps
    rotated_BHLF = turned_at_last(query.feature_LF, turn, setting.words)
    out_BHLE = setting.words.new(rotated_BHLF, means.key_value_BHFE.shape[-1])
    return torch.matmul(rotated_BHLF, means.key_value_BHFE, out=out_BHLE).div_(denominator_BHL1)


def query_back(
    query_BHLD: Tensor,
    grad_BHLE: Tensor,
    means: Sums,
    turn: Turns | None,
    alpha_range: AlphaRange,
    setting: Setting,
) -> QueryGradient:
    """Gradients of ``query_out``."""
    query_BHLD = widen(query_BHLD)
    low, high = shaped(alpha_range, query_BHLD)
    words = setting.words
    query = query_map(query_BHLD, low, high, setting.what, words)
    rotated_BHLF = turned(query.feature_LF, turn, words)
    denominator_BHL1 = query.feature_LF @ means.key_BHF[..., None] + setting.eps
    grad_BHLE = torch.div(widen(grad_BHLE), denominator_BHL1, out=words.new(query_BHLD, grad_BHLE.shape[-1]))
    score_grad_BHLF = torch.matmul(grad_BHLE, means.key_value_BHFE.mT, out=words.like(rotated_BHLF))
    product_BHLF = torch.mul(rotated_BHLF, score_grad_BHLF, out=words.like(rotated_BHLF))
    by_denominator_BHL1 = -product_BHLF.sum(-1, keepdim=True) / denominator_BHL1
    sums = Sums(rotated_BHLF.mT @ grad_BHLE, (query.feature_LF.mT @ by_denominator_BHL1)[..., 0])
    grad_BHLF = turned_back(score_grad_BHLF, turn, words).addcmul_(by_denominator_BHL1, means.key_BHF[..., None, :])
    grad_BHLD, by_exponent_BHL1 = query_gradient(query, grad_BHLF, low, high, setting.what, words)
    return QueryGradient.of(grad_BHLD, by_exponent_BHL1, query, sums)


def key_back(
    key_BHLD: Tensor,
    value_BHLE: Tensor,
    hidden_BL: Tensor | None,
    grad: Sums,
    turn: Turns | None,
    setting: Setting,
) -> tuple[Tensor, Tensor]:
    """(dL/dkey (B, H, L, D), dL/dvalue (B, H, L, E)) from the gradients of ``key_sums``."""
    words = setting.words
    key = key_map(shown(key_BHLD, hidden_BL), setting.what, words)
    rotated_BHLF = turned(key.feature_LF, turn, words)
    value_BHLE = shown(value_BHLE, hidden_BL)
    score_grad_BHLF = torch.matmul(value_BHLE, grad.key_value_BHFE.mT, out=words.like(rotated_BHLF))
    grad_BHLF = turned_back(score_grad_BHLF, turn, words).add_(grad.key_BHF[..., None, :])
    by_value = torch.matmul(rotated_BHLF, grad.key_value_BHFE, out=words.like(value_BHLE))
    return key_gradient(key, grad_BHLF, setting.what, words), by_value
