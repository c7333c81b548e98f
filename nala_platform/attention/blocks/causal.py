"""One block of tokens of causal NaLa: from the sums over all keys before it to those behind it, and back.

The block is cut into T stretches of C tokens. Between stretches the sums S and z go on, within one the scores are a
lower triangle. With the counts c_i of keys seen, ``out_i = num_i / D_i``, ``D_i = phi_q_i . z_i + eps c_i`` and, for g
and e as in ``both_ways``, the gradients are sums over i >= j in place of j <= i: the same products with the triangle
transposed.

Shapes: B batch, H heads, L = T C tokens of the block, D head size, E value size, F = 2D features.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nala_platform.attention.blocks.both_ways import QueryGradient, Setting, Sums, shaped, shown
from nala_platform.attention.blocks.closed_form import Key, Query, key_gradient, key_map, query_gradient, query_map
from nala_platform.attention.precision import widen
from nala_platform.attention.signature import AlphaRange, Rope

STRETCH = 64
"""Tokens: about the head size, where the triangle and the sums cost alike."""


class Features(NamedTuple):
    """Both maps of a block in stretches, and the sums over the keys before each."""

    query: Query
    key: Key
    phi_q_BHTCF: Tensor
    phi_k_BHTCF: Tensor
    rotated_q_BHTCF: Tensor
    rotated_k_BHTCF: Tensor
    value_BHTCE: Tensor
    own: Sums
    """of each stretch alone, (B, H, T, F, E) and (B, H, T, F)"""
    before: Sums


def _features(
    query_BHLD: Tensor,
    key_BHLD: Tensor,
    value_BHLE: Tensor,
    hidden_BL: Tensor | None,
    sums: Sums,
    tables: Rope | None,
    alpha_range: AlphaRange,
    setting: Setting,
) -> Features:
    query_BHLD = widen(query_BHLD)
    query = query_map(query_BHLD, *shaped(alpha_range, query_BHLD), setting.what, setting.words)
    key = key_map(shown(key_BHLD, hidden_BL), setting.what, setting.words)
    phi_q, phi_k, value = query.feature_LF, key.feature_LF, shown(value_BHLE, hidden_BL)
    rotated_q, rotated_k = (setting.words.rotate(phi, tables) for phi in (phi_q, phi_k))
    phi_q, phi_k, rotated_q, rotated_k, value = map(_stretches, (phi_q, phi_k, rotated_q, rotated_k, value))
    own = Sums(rotated_k.mT @ value, phi_k.sum(-2))
    before = Sums(*(_before(part) + whole[:, :, None] for part, whole in zip(own, sums, strict=True)))
    return Features(query, key, phi_q, phi_k, rotated_q, rotated_k, value, own, before)


def _stretches(x_BHLF: Tensor) -> Tensor:
    """(B, H, T, C, F), with zeros behind the last token."""
    length = x_BHLF.shape[2]
    if torch.compiler.is_compiling():  # one graph for all lengths: always padded, always as long
        return F.pad(x_BHLF, (0, 0, 0, -length % STRETCH)).unflatten(2, (-1, STRETCH))
    stretch = min(STRETCH, length)
    if length % stretch:
        x_BHLF = F.pad(x_BHLF, (0, 0, 0, -length % stretch))
    return x_BHLF.unflatten(2, (-1, stretch))


def _before(x_BHTX: Tensor) -> Tensor:
    """Sums over the earlier stretches. A product with a triangle of ones: PyTorch's cumsum over this axis is slow."""
    stretches = x_BHTX.shape[2]
    earlier_TT = torch.ones(stretches, stretches, dtype=x_BHTX.dtype, device=x_BHTX.device).tril_(-1)
    return (earlier_TT @ x_BHTX.flatten(3)).view_as(x_BHTX)


def _after(x_BHTX: Tensor) -> Tensor:
    """Sums over the later stretches."""
    stretches = x_BHTX.shape[2]
    later_TT = torch.ones(stretches, stretches, dtype=x_BHTX.dtype, device=x_BHTX.device).triu_(1)
    return (later_TT @ x_BHTX.flatten(3)).view_as(x_BHTX)


def _denominator(parts: Features, scores_BHTCC: Tensor, count_BL: Tensor, setting: Setting, turned: bool) -> Tensor:
    """D_i, (B, H, T, C, 1); without rotation the scores are its summands."""
    if turned:
        scores_BHTCC = (parts.phi_q_BHTCF @ parts.phi_k_BHTCF.mT).tril_()
    count_BL = count_BL.clamp_min(1)
    count_BHTC1 = _stretches(count_BL[:, None, :, None])
    empty = 1 - count_BHTC1.clamp_max(1)  # the padding behind the last token: anything but 0
    within_BHTC1 = scores_BHTCC.sum(-1, keepdim=True)
    return within_BHTC1 + parts.phi_q_BHTCF @ parts.before.key_BHF[..., None] + (setting.eps * count_BHTC1 + empty)


def causal_out(
    query_BHLD: Tensor,
    key_BHLD: Tensor,
    value_BHLE: Tensor,
    hidden_BL: Tensor | None,
    count_BL: Tensor,
    sums: Sums,
    tables: Rope | None,
    alpha_range: AlphaRange,
    setting: Setting,
) -> tuple[Tensor, Sums]:
    """What each query gets from ``sums`` and the keys up to it, (B, H, L, E), and the sums behind the block.

    ``count_BL``: keys that each query sees.
    """
    parts = _features(query_BHLD, key_BHLD, value_BHLE, hidden_BL, sums, tables, alpha_range, setting)
    scores_BHTCC = (parts.rotated_q_BHTCF @ parts.rotated_k_BHTCF.mT).tril_()
    denominator_BHTC1 = _denominator(parts, scores_BHTCC, count_BL, setting, tables is not None)
    out_BHTCE = parts.rotated_q_BHTCF @ parts.before.key_value_BHFE + scores_BHTCC @ parts.value_BHTCE
    out_BHLE = out_BHTCE.div_(denominator_BHTC1).flatten(2, 3)[:, :, : query_BHLD.shape[2]]
    return out_BHLE, Sums(*(whole + part.sum(2) for part, whole in zip(parts.own, sums, strict=True)))


def causal_back(
    query_BHLD: Tensor,
    key_BHLD: Tensor,
    value_BHLE: Tensor,
    grad_BHLE: Tensor,
    hidden_BL: Tensor | None,
    count_BL: Tensor,
    sums: Sums,
    grad_sums: Sums,
    tables: Rope | None,
    alpha_range: AlphaRange,
    setting: Setting,
) -> tuple[QueryGradient, Tensor, Tensor]:
    """Gradients of ``causal_out``: of queries and ``sums``, of keys, of values; ``grad_sums``: of the sums behind."""
    parts = _features(query_BHLD, key_BHLD, value_BHLE, hidden_BL, sums, tables, alpha_range, setting)
    turned = tables is not None
    q, k, v = parts.rotated_q_BHTCF, parts.rotated_k_BHTCF, parts.value_BHTCE
    scores_BHTCC = (q @ k.mT).tril_()
    denominator_BHTC1 = _denominator(parts, scores_BHTCC, count_BL, setting, turned)
    g_BHTCE = _stretches(widen(grad_BHLE)) / denominator_BHTC1
    score_grad_BHTCC = (g_BHTCE @ v.mT).tril_()
    q_grad_BHTCF = g_BHTCE @ parts.before.key_value_BHFE.mT + score_grad_BHTCC @ k
    e_BHTC1 = -(q * q_grad_BHTCF).sum(-1, keepdim=True) / denominator_BHTC1
    own = Sums(q.mT @ g_BHTCE, (parts.phi_q_BHTCF.mT @ e_BHTC1)[..., 0])
    after = Sums(*(_after(part) + whole[:, :, None] for part, whole in zip(own, grad_sums, strict=True)))
    value_grad = scores_BHTCC.mT @ g_BHTCE + k @ after.key_value_BHFE
    k_grad_BHTCF = score_grad_BHTCC.mT @ q + v @ after.key_value_BHFE.mT
    weight_BHTCC = e_BHTC1.expand_as(scores_BHTCC).tril()
    phi_q_grad = weight_BHTCC @ parts.phi_k_BHTCF + e_BHTC1 * parts.before.key_BHF[..., None, :]
    phi_k_grad = weight_BHTCC.mT @ parts.phi_q_BHTCF + after.key_BHF[..., None, :]
    length = query_BHLD.shape[2]
    q_grad, k_grad, phi_q_grad, phi_k_grad, value_grad = (
        x.flatten(2, 3)[:, :, :length] for x in (q_grad_BHTCF, k_grad_BHTCF, phi_q_grad, phi_k_grad, value_grad)
    )
    words = setting.words
    low, high = shaped(alpha_range, denominator_BHTC1)
    query_grad, by_exponent_BHL1 = query_gradient(
        parts.query, words.unrotate(q_grad, tables) + phi_q_grad, low, high, setting.what
    )
    key_grad = key_gradient(parts.key, words.unrotate(k_grad, tables) + phi_k_grad, setting.what)
    by_high_BHL1 = by_exponent_BHL1 * parts.query.gate_L1
    back = Sums(*(whole + part.sum(2) for part, whole in zip(own, grad_sums, strict=True)))
    by_low_BH = (by_exponent_BHL1 - by_high_BHL1).sum((-2, -1))
    return QueryGradient(query_grad, back, by_low_BH, by_high_BHL1.sum((-2, -1))), key_grad, value_grad
