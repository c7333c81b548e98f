"""NaLa, norm-aware linear attention (arXiv 2506.21137).

Shapes: B batch, H heads, N queries, M keys, D head size, E value size.
"""

from functools import partial
from typing import Protocol

from torch import Tensor

from nala_platform.attention.door import check, look_up
from nala_platform.attention.feature_map import key_features, query_features
from nala_platform.attention.plain import linear_form
from nala_platform.attention.precision import autocast_off
from nala_platform.attention.reference import quadratic_form
from nala_platform.attention.signature import AlphaRange, Form, Rope


class Backend(Protocol):
    """One way to compute ``nala_attention``: its arguments, checked; its result in any dtype."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        alpha_range: AlphaRange,
        alpha_gate: str,
        key_power: float,
        direction: str,
        rope: Rope | None,
        is_causal: bool,
        key_padding_mask: Tensor | None,
        eps: float,
    ) -> Tensor: ...


def _through_features(
    form: Form,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    alpha_range: AlphaRange,
    alpha_gate: str,
    key_power: float,
    direction: str,
    rope: Rope | None,
    is_causal: bool,
    key_padding_mask: Tensor | None,
    eps: float,
) -> Tensor:
    """Map queries and keys to features, then contract them in the given form."""
    phi_q_BHNF = query_features(query, alpha_range=alpha_range, alpha_gate=alpha_gate, direction=direction)
    phi_k_BHMF = key_features(key, key_power=key_power, direction=direction)
    return form(
        phi_q_BHNF, phi_k_BHMF, value, rope=rope, is_causal=is_causal, key_padding_mask=key_padding_mask, eps=eps
    )


BACKENDS: dict[str, Backend] = {
    "reference": partial(_through_features, quadratic_form),
    "plain": partial(_through_features, linear_form),
}
# "auto" is "plain" because it is the only linear-time form so far and runs on every device; where a faster one exists
# for the device and dtype at hand, the choice belongs here and nowhere else.
BACKENDS["auto"] = BACKENDS["plain"]


def nala_attention(
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
    """out_i = (R_i phi_q_i) . mean_j( (R_j phi_k_j) v_j^T ) / ( phi_q_i . mean_j(phi_k_j) + eps ), (B, H, N, E).

    Args:
        query: (B, H, N, D).
        key: (B, H, M, D).
        value: (B, H, M, E); the result has its dtype. Sums, norms and states are float32, or float64 for float64 input.
        alpha_range: (low, high), 0 < low < high, of the query exponent; each a float or a tensor (H,).
        alpha_gate: ``"tanh"`` or ``"sigmoid"``, how the exponent grows with the query's norm (``feature_map.alpha``).
        key_power: p > 0, the exponent of the keys.
        direction: ``"split"`` (signs in two halves) or ``"cosine"`` (``feature_map.query_features``).
        rope: (cos, sin), each (N, D): R rotates the features in the numerator only; needs N = M and an even D.
        is_causal: query i sees keys j <= i; needs N = M.
        key_padding_mask: bool (B, M), True = ignore: such a key is in neither mean.
        eps: added to the denominator, > 0.
        backend: ``"auto"`` or a name in ``BACKENDS``; never changes the result beyond rounding.

    A zero query, and a query whose keys are all masked, get 0. Raises UserError for arguments that do not fit together.
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
        out_BHNE = compute(
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
    return out_BHNE.to(value.dtype)
