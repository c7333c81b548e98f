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

from torch import Tensor

from nala_platform.attention.blocks.closed_form import (
    Bound,
    Map,
    Query,
    Words,
    key_gradient,
    key_map,
    query_gradient,
    query_map,
)
from nala_platform.attention.precision import widen
from nala_platform.attention.signature import AlphaRange, Rope


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


def key_sums(
    key_BHLD: Tensor, value_BHLE: Tensor, hidden_BL: Tensor | None, tables: Rope | None, setting: Setting
) -> Sums:
    """The sums over the keys of a block."""
    key = key_map(shown(key_BHLD, hidden_BL), setting.what, setting.words)
    rotated_BHLF = setting.words.rotate(key.feature_LF, tables)
    return Sums(rotated_BHLF.mT @ shown(value_BHLE, hidden_BL), key.feature_LF.sum(-2))


def query_out(
    query_BHLD: Tensor, means: Sums, tables: Rope | None, alpha_range: AlphaRange, setting: Setting
) -> Tensor:
    """What the queries of a block get, (B, H, L, E)."""
    query_BHLD = widen(query_BHLD)
    low, high = shaped(alpha_range, query_BHLD)
    query = query_map(query_BHLD, low, high, setting.what, setting.words)
    denominator_BHL1 = query.feature_LF @ means.key_BHF[..., None] + setting.eps
    return (setting.words.rotate(query.feature_LF, tables) @ means.key_value_BHFE).div_(denominator_BHL1)


def query_back(
    query_BHLD: Tensor,
    grad_BHLE: Tensor,
    means: Sums,
    tables: Rope | None,
    alpha_range: AlphaRange,
    setting: Setting,
) -> QueryGradient:
    """Gradients of ``query_out``."""
    query_BHLD = widen(query_BHLD)
    low, high = shaped(alpha_range, query_BHLD)
    query = query_map(query_BHLD, low, high, setting.what, setting.words)
    rotated_BHLF = setting.words.rotate(query.feature_LF, tables)
    denominator_BHL1 = query.feature_LF @ means.key_BHF[..., None] + setting.eps
    grad_BHLE = widen(grad_BHLE) / denominator_BHL1
    turned_BHLF = grad_BHLE @ means.key_value_BHFE.mT
    by_denominator_BHL1 = -(rotated_BHLF * turned_BHLF).sum(-1, keepdim=True) / denominator_BHL1
    sums = Sums(rotated_BHLF.mT @ grad_BHLE, (query.feature_LF.mT @ by_denominator_BHL1)[..., 0])
    grad_BHLF = setting.words.unrotate(turned_BHLF, tables).addcmul_(by_denominator_BHL1, means.key_BHF[..., None, :])
    grad_BHLD, by_exponent_BHL1 = query_gradient(query, grad_BHLF, low, high, setting.what)
    return QueryGradient.of(grad_BHLD, by_exponent_BHL1, query, sums)


def key_back(
    key_BHLD: Tensor,
    value_BHLE: Tensor,
    hidden_BL: Tensor | None,
    grad: Sums,
    tables: Rope | None,
    setting: Setting,
) -> tuple[Tensor, Tensor]:
    """(dL/dkey (B, H, L, D), dL/dvalue (B, H, L, E)) from the gradients of ``key_sums``."""
    key = key_map(shown(key_BHLD, hidden_BL), setting.what, setting.words)
    rotated_BHLF = setting.words.rotate(key.feature_LF, tables)
    turned_BHLF = shown(value_BHLE, hidden_BL) @ grad.key_value_BHFE.mT
    grad_BHLF = setting.words.unrotate(turned_BHLF, tables).add_(grad.key_BHF[..., None, :])
    return key_gradient(key, grad_BHLF, setting.what), rotated_BHLF @ grad.key_value_BHFE
