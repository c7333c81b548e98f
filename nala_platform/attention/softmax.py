"""Softmax attention, the quadratic yardstick.

Shapes: B batch, H heads, N queries, M keys, D head size, E value size.
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nala_platform.attention.door import check
from nala_platform.attention.gradient import is_transformed
from nala_platform.attention.masking import cleared, visible
from nala_platform.attention.precision import autocast_off, widen
from nala_platform.attention.rotary import rotate
from nala_platform.attention.signature import AlphaRange, Backend, Options, Rope
from nala_platform.attention.tracing import fx_leaf
from nala_platform.errors import look_up


def _reference(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    sees_B1NM = visible(query, key, is_causal=options.is_causal, key_padding_mask=options.key_padding_mask)
    scores_BHNM = widen(query) @ widen(key).transpose(-2, -1) * query.shape[-1] ** -0.5
    # With -inf the softmax of a row without any key would be 0/0; a finite lowest score keeps its gradient finite too.
    weights_BHNM = torch.where(sees_B1NM, scores_BHNM, torch.finfo(scores_BHNM.dtype).min).softmax(-1)
    return torch.where(sees_B1NM, weights_BHNM, 0.0) @ widen(value)


def _fused(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    if options.key_padding_mask is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=options.is_causal)
    sees_B1NM = visible(query, key, is_causal=options.is_causal, key_padding_mask=options.key_padding_mask)
    # Some of torch's kernels make 0/0 of a row without any key: let it see all of them, then drop what it saw.
    any_B1N1 = sees_B1NM.any(-1, keepdim=True)
    out_BHNE = F.scaled_dot_product_attention(query, key, value, attn_mask=sees_B1NM | ~any_B1N1)
    return torch.where(any_B1N1, out_BHNE, 0.0)


BACKENDS: dict[str, Backend] = {"reference": _reference, "plain": _fused, "auto": _fused}


@fx_leaf
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
    options = Options(alpha_range, alpha_gate, key_power, direction, rope, is_causal, key_padding_mask, eps)
    check(query, key, value, options)
    compute = look_up(BACKENDS, backend, option="backend")
    key, value = cleared(key, value, key_padding_mask)
    with autocast_off(query):
        # The angles are applied in float32; what torch's kernels take is one dtype for all three, that of the values.
        query, key = (rotate(widen(x), rope).to(value.dtype) for x in (query, key))
        # Torch's fused kernels have no rules for vmap, forward mode and second derivatives.
        with sdpa_kernel(SDPBackend.MATH) if is_transformed() else nullcontext():
            return compute(query, key, value, options).to(value.dtype)
