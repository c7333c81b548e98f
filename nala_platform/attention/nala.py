"""NaLa, norm-aware linear attention (arXiv 2506.21137).

Shapes: B batch, H heads, N queries, M keys, D head size, E value size, F = 2D features.
"""

from functools import partial

from torch import Tensor

from nala_platform.attention.door import check
from nala_platform.attention.feature_map import key_features, query_features
from nala_platform.attention.masking import cleared
from nala_platform.attention.plain import linear_form
from nala_platform.attention.precision import autocast_off
from nala_platform.attention.reference import quadratic_form
from nala_platform.attention.signature import AlphaRange, Backend, Form, Options, Rope
from nala_platform.errors import look_up


def _through_features(form: Form, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    """Map queries and keys to features, then contract them in the given form."""
    phi_q_BHNF = query_features(
        query, alpha_range=options.alpha_range, alpha_gate=options.alpha_gate, direction=options.direction
    )
    phi_k_BHMF = key_features(key, key_power=options.key_power, direction=options.direction)
    return form(
        phi_q_BHNF,
        phi_k_BHMF,
        value,
        rope=options.rope,
        is_causal=options.is_causal,
        key_padding_mask=options.key_padding_mask,
        eps=options.eps,
    )


_reference = partial(_through_features, quadratic_form)
_plain = partial(_through_features, linear_form)

# "auto" is "plain" because that is the only linear-time backend so far, and it runs on every device; where a faster one
# exists for the device and dtype at hand, the choice belongs in this row and nowhere else.
BACKENDS: dict[str, Backend] = {"reference": _reference, "plain": _plain, "auto": _plain}


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

    query (B, H, N, D), key (B, H, M, D), value (B, H, M, E); the result has the dtype of value, sums and norms are
    float32 (float64 for float64 input). A zero query, and a query whose keys are all masked, get 0.

    alpha_range: (low, high) of the query exponent, 0 < low < high, each a float or a tensor (H,).
    alpha_gate, direction: the maps phi, as in ``feature_map.query_features``; key_power: p > 0, the keys' exponent.
    rope: (cos, sin), each (N, D): R rotates the features, in the numerator only; needs N = M and an even D.
    is_causal: the means run over j <= i; needs N = M. key_padding_mask: bool (B, M), True = ignored in both means.
    eps: > 0. backend: a name in ``BACKENDS``; it never changes the result beyond rounding.
    Raises UserError for arguments that do not fit together.
    """
    options = Options(alpha_range, alpha_gate, key_power, direction, rope, is_causal, key_padding_mask, eps)
    check(query, key, value, options)
    compute = look_up(BACKENDS, backend, option="backend")
    key, value = cleared(key, value, key_padding_mask)
    with autocast_off(query):
        return compute(query, key, value, options).to(value.dtype)
