"""One block of tokens of causal NaLa: from the sums over all keys before it to those behind it, and back.

The block comes in T stretches of C tokens. Between stretches the sums S and z go on, within one the scores are a lower
triangle. With the counts c_i of keys seen, ``out_i = num_i / D_i``, ``D_i = phi_q_i . z_i + eps c_i`` and, for g and e
as in ``both_ways``, the gradients are sums over i >= j in place of j <= i: the same products with the triangle
transposed. Behind the last token all is 0, the count too, and D is 1.

Shapes: B batch, H heads, T stretches, C tokens of one, D head size, E value size, F = 2D features.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nala_platform.attention.blocks.both_ways import QueryGradient, Setting, Sums, shaped, shown, turned, turned_back
from nala_platform.attention.blocks.closed_form import (
    Key,
    Query,
    key_gradient,
    key_map,
    query_gradient,
    query_map,
)
from nala_platform.attention.blocks.words import Turns
from nala_platform.attention.precision import widen
from nala_platform.attention.signature import AlphaRange

STRETCH = 64
"""Tokens: about the head size, where the triangle and the sums cost alike."""


class Features(NamedTuple):
    """Both maps of a block, and the sums over the keys before each stretch."""

    query: Query
    key: Key
    rotated_q_BHTCF: Tensor
    rotated_k_BHTCF: Tensor
    value_BHTCE: Tensor
    own: Sums
    """of each stretch alone, (B, H, T, F, E) and (B, H, T, F)"""
    before: Sums


def _features(
    query_BHTCD: Tensor,
    key_BHTCD: Tensor,
    value_BHTCE: Tensor,
    hidden_BTC: Tensor | None,
    sums: Sums,
    turn: Turns | None,
    alpha_range: AlphaRange,
    setting: Setting,
) -> Features:
    query_BHTCD, value_BHTCE = widen(query_BHTCD), shown(value_BHTCE, hidden_BTC)
    query = query_map(query_BHTCD, *shaped(alpha_range, query_BHTCD), setting.what, setting.words)
    key = key_map(shown(key_BHTCD, hidden_BTC), setting.what, setting.words)
    rotated_q, rotated_k = (turned(part.feature_LF, turn, setting.words) for part in (query, key))
    own = Sums(rotated_k.mT @ value_BHTCE, key.feature_LF.sum(-2))
    before = Sums(*(_others(part, after=False) + whole[:, :, None] for part, whole in zip(own, sums, strict=True)))
    return Features(query, key, rotated_q, rotated_k, value_BHTCE, own, before)


def _others(x_BHTX: Tensor, *, after: bool) -> Tensor:
    """Sums over the earlier or later stretches. A product with ones: PyTorch's cumsum over this axis is slow."""
    stretches = x_BHTX.shape[2]
    ones_TT = torch.ones(stretches, stretches, dtype=x_BHTX.dtype, device=x_BHTX.device)
    ones_TT = ones_TT.triu_(1) if after else ones_TT.tril_(-1)
    return (ones_TT @ x_BHTX.flatten(3)).view_as(x_BHTX)


def _denominator(parts: Features, scores_BHTCC: Tensor, count_BTC: Tensor, setting: Setting, rotates: bool) -> Tensor:
    """D_i, (B, H, T, C, 1); without rotation the scores are its summands."""
    phi_q_BHTCF = parts.query.feature_LF
    if rotates:
        scores_BHTCC = (phi_q_BHTCF @ parts.key.feature_LF.mT).tril_()
    count_BHTC1 = count_BTC[:, None, ..., None]
    nothing_BHTC1 = setting.eps * count_BHTC1 + (1 - count_BHTC1.clamp_max(1))
    return scores_BHTCC.sum(-1, keepdim=True) + phi_q_BHTCF @ parts.before.key_BHF[..., None] + nothing_BHTC1


def causal_out(
    query_BHTCD: Tensor,
    key_BHTCD: Tensor,
    value_BHTCE: Tensor,
    hidden_BTC: Tensor | None,
    count_BTC: Tensor,
    sums: Sums,
    turn: Turns | None,
    alpha_range: AlphaRange,
    setting: Setting,
) -> tuple[Tensor, Sums]:
    """What each query gets from ``sums`` and the keys up to it, (B, H, T, C, E), and the sums behind the block.

    ``count_BTC``: keys that each query sees, at least 1; 0 behind the last token.
    """
    parts = _features(query_BHTCD, key_BHTCD, value_BHTCE, hidden_BTC, sums, turn, alpha_range, setting)
    scores_BHTCC = (parts.rotated_q_BHTCF @ parts.rotated_k_BHTCF.mT).tril_()
    denominator_BHTC1 = _denominator(parts, scores_BHTCC, count_BTC, setting, turn is not None)
    out_BHTCE = parts.rotated_q_BHTCF @ parts.before.key_value_BHFE + scores_BHTCC @ parts.value_BHTCE
    return out_BHTCE.div_(denominator_BHTC1), _total(sums, parts.own)


def causal_back(
    query_BHTCD: Tensor,
    key_BHTCD: Tensor,
    value_BHTCE: Tensor,
    grad_BHTCE: Tensor,
    hidden_BTC: Tensor | None,
    count_BTC: Tensor,
    sums: Sums,
    grad_sums: Sums,
    turn: Turns | None,
    alpha_range: AlphaRange,
    setting: Setting,
) -> tuple[QueryGradient, Tensor, Tensor]:
    """Gradients of ``causal_out``: of queries and ``sums``, of keys, of values; ``grad_sums``: of the sums behind."""
    parts = _features(query_BHTCD, key_BHTCD, value_BHTCE, hidden_BTC, sums, turn, alpha_range, setting)
    words = setting.words
    q, k, v, phi_q = parts.rotated_q_BHTCF, parts.rotated_k_BHTCF, parts.value_BHTCE, parts.query.feature_LF
    scores_BHTCC = (q @ k.mT).tril_()
    denominator_BHTC1 = _denominator(parts, scores_BHTCC, count_BTC, setting, turn is not None)
    g_BHTCE = widen(grad_BHTCE) / denominator_BHTC1
    score_grad_BHTCC = (g_BHTCE @ v.mT).tril_()
    q_grad_BHTCF = g_BHTCE @ parts.before.key_value_BHFE.mT + score_grad_BHTCC @ k
    e_BHTC1 = -(q * q_grad_BHTCF).sum(-1, keepdim=True) / denominator_BHTC1
    own = Sums(q.mT @ g_BHTCE, (phi_q.mT @ e_BHTC1)[..., 0])
    after = Sums(*(_others(part, after=True) + whole[:, :, None] for part, whole in zip(own, grad_sums, strict=True)))
    value_grad_BHTCE = scores_BHTCC.mT @ g_BHTCE + k @ after.key_value_BHFE
    k_grad_BHTCF = score_grad_BHTCC.mT @ q + v @ after.key_value_BHFE.mT
    # what comes by way of the denominator: a triangle whose row i is e_i
    weight_BHTCC = e_BHTC1.expand_as(scores_BHTCC).tril()
    phi_q_grad = weight_BHTCC @ parts.key.feature_LF + e_BHTC1 * parts.before.key_BHF[..., None, :]
    phi_k_grad = weight_BHTCC.mT @ phi_q + after.key_BHF[..., None, :]
    q_grad_BHTCF, k_grad_BHTCF = (turned_back(x, turn, words) for x in (q_grad_BHTCF, k_grad_BHTCF))
    low, high = shaped(alpha_range, q)
    query_grad = query_gradient(parts.query, phi_q_grad.add_(q_grad_BHTCF), low, high, setting.what, words)
    key_grad_BHTCD = key_gradient(parts.key, phi_k_grad.add_(k_grad_BHTCF), setting.what, words)
    back = QueryGradient.of(*query_grad, parts.query, _total(grad_sums, own))
    return back, key_grad_BHTCD, value_grad_BHTCE


def _total(sums: Sums, own: Sums) -> Sums:
    return Sums(*(whole + part.sum(2) for part, whole in zip(own, sums, strict=True)))
