"""Softmax attention, the quadratic yardstick.

Shapes: B batch, H heads, N queries, M keys, D head size, E value size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nala_platform.attention.door import check, look_up
from nala_platform.attention.precision import autocast_off, widen
from nala_platform.attention.reference import visible
from nala_platform.attention.rotary import rotate
from nala_platform.attention.signature import AlphaRange, Rope


def _fused(query: Tensor, key: Tensor, value: Tensor, sees_B1NM: Tensor | None, *, is_causal: bool) -> Tensor:
    if sees_B1NM is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    # A row without any key would be 0/0 in some of torch's kernels: let it see all keys, then drop what it saw.
    any_B1N1 = sees_B1NM.any(-1, keepdim=True)
    out_BHNE = F.scaled_dot_product_attention(query, key, value, attn_mask=sees_B1NM | ~any_B1N1)
    return torch.where(any_B1N1, out_BHNE, 0.0)


def _by_definition(query: Tensor, key: Tensor, value: Tensor, sees_B1NM: Tensor | None, *, is_causal: bool) -> Tensor:
    scores_BHNM = widen(query) @ widen(key).mT * query.shape[-1] ** -0.5
    if sees_B1NM is None:
        sees_B1NM = visible(query, key, is_causal=is_causal, key_padding_mask=None)
    top_BHN1 = scores_BHNM.masked_fill(~sees_B1NM, -torch.inf).amax(-1, keepdim=True).detach()
    weights_BHNM = torch.where(sees_B1NM, scores_BHNM - top_BHN1, -torch.inf).exp()
    total_BHN1 = weights_BHNM.sum(-1, keepdim=True)
    return weights_BHNM @ widen(value) / torch.where(total_BHN1 > 0, total_BHN1, 1.0)


BACKENDS = {"reference": _by_definition, "plain": _fused, "auto": _fused}


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    alpha_range: AlphaRange = (1.5, 4.5),
    alpha_gate: str = "tanh",
    key_power: float = 3.0,
    direction: str = "split",
    rope: Rope | None = None,
    is_causal: bool = False,
    key_padding_mask: Tensor | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
) -> Tensor:
    """out_i = sum_j softmax_j( (R_i q_i) . (R_j k_j) / sqrt(D) ) v_j, (B, H, N, E), in O(N M).

    ``rope`` rotates queries and keys before the scores; ``is_causal`` and ``key_padding_mask`` act as in
    ``nala_attention``. ``backend="plain"`` and ``"auto"`` are ``F.scaled_dot_product_attention``, ``"reference"`` is
    the equation above in float32. ``alpha_range``, ``alpha_gate``, ``key_power``, ``direction`` and ``eps`` are checked
    and have no effect. A query whose keys are all masked gets 0. Raises UserError as ``nala_attention``.
    """
    check(
        query,
        key,
        value,
        alpha_range=alpha_range,
        alpha_gate=alpha_gate,
        key_power=key_power,
        direction=direction,
        rope=rope,
        is_causal=is_causal,
        key_padding_mask=key_padding_mask,
        eps=eps,
    )
    compute = look_up(BACKENDS, backend, option="backend")
    with autocast_off(query):
        # Angles are applied in float32; the scores are then left to the precision of the values.
        query, key = (rotate(widen(x), rope).to(value.dtype) for x in (query, key))
        sees = None
        if key_padding_mask is not None:
            sees = visible(query, key, is_causal=is_causal, key_padding_mask=key_padding_mask)
            value = value.masked_fill(key_padding_mask[:, None, :, None], 0.0)
        return compute(query, key, value, sees, is_causal=is_causal).to(value.dtype)
