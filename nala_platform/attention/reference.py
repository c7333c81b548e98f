"""The quadratic form of linear attention, by definition: the slow twin of every fast path.

Shapes: B batch, H heads, N queries, M keys, F features, E value size.
"""

import torch
from torch import Tensor

from nala_platform.attention.masking import visible
from nala_platform.attention.precision import widen
from nala_platform.attention.rotary import rotate
from nala_platform.attention.signature import Rope


def quadratic_form(
    phi_q_BHNF: Tensor,
    phi_k_BHMF: Tensor,
    value_BHME: Tensor,
    *,
    rope: Rope | None,
    is_causal: bool,
    key_padding_mask: Tensor | None,
    eps: float,
) -> Tensor:
    """out_i = mean_j( (R_i phi_q_i . R_j phi_k_j) v_j ) / ( mean_j( phi_q_i . phi_k_j ) + eps ), (B, H, N, E).

    The means run over the keys that query i sees: those that ``key_padding_mask`` (B, M; True = ignore) leaves and, if
    ``is_causal``, j <= i. A query that sees no key gets 0. Takes O(N M) time and memory.
    """
    sees_B1NM = visible(phi_q_BHNF, phi_k_BHMF, is_causal=is_causal, key_padding_mask=key_padding_mask)
    count_B1N1 = sees_B1NM.sum(-1, keepdim=True).clamp_min(1)

    rotated_BHNM = rotate(phi_q_BHNF, rope) @ rotate(phi_k_BHMF, rope).transpose(-2, -1)
    weight_BHNM = phi_q_BHNF @ phi_k_BHMF.transpose(-2, -1)
    numerator_BHNE = torch.where(sees_B1NM, rotated_BHNM, 0.0) @ widen(value_BHME) / count_B1N1
    denominator_BHN1 = torch.where(sees_B1NM, weight_BHNM, 0.0).sum(-1, keepdim=True) / count_B1N1
    return numerator_BHNE / (denominator_BHN1 + eps)
