"""Linear attention with the features elu(x) + 1 (Katharopoulos et al. 2020, arXiv 2006.16236) and relu(x).

Shapes: B batch, H heads, N queries, M keys, D head size and feature size, E value size.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from nala_platform.attention.door import check
from nala_platform.attention.masking import cleared
from nala_platform.attention.plain import linear_form
from nala_platform.attention.precision import autocast_off, widen
from nala_platform.attention.reference import quadratic_form
from nala_platform.attention.signature import AlphaRange, Form, Options, Rope
from nala_platform.attention.tracing import fx_leaf
from nala_platform.errors import look_up

FORMS: dict[str, Form] = {"reference": quadratic_form, "plain": linear_form, "auto": linear_form}


@fx_leaf
def linear_attention(
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
    """NaLa's quotient with phi(x) = elu(x) + 1 for queries and keys, (B, H, N, E).

    ``rope`` (in the numerator, on the features), ``is_causal``, ``key_padding_mask``, ``eps`` and ``backend`` (a name
    in ``FORMS``) act as in ``nala_attention``; ``alpha_range``, ``alpha_gate``, ``key_power`` and ``direction`` are
    checked and have no effect. A query whose keys are all masked gets 0. Raises UserError as ``nala_attention``.
    """
    options = Options(alpha_range, alpha_gate, key_power, direction, rope, is_causal, key_padding_mask, eps)
    return _through_features(elu_plus_one, backend, query, key, value, options)


@fx_leaf
def relu_attention(
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
    """``linear_attention`` with phi(x) = relu(x). A query without a positive entry gets 0."""
    options = Options(alpha_range, alpha_gate, key_power, direction, rope, is_causal, key_padding_mask, eps)
    return _through_features(F.relu, backend, query, key, value, options)


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1, above 0 everywhere."""
    return F.elu(x) + 1


def _through_features(
    phi: Callable[[Tensor], Tensor], backend: str, query: Tensor, key: Tensor, value: Tensor, options: Options
) -> Tensor:
    """Check, map queries and keys to features, and contract them in the form that the backend names."""
    check(query, key, value, options)
    form = look_up(FORMS, backend, option="backend")
    key, value = cleared(key, value, options.key_padding_mask)
    with autocast_off(query):
        return form(
            phi(widen(query)),
            phi(widen(key)),
            value,
            rope=options.rope,
            is_causal=options.is_causal,
            key_padding_mask=options.key_padding_mask,
            eps=options.eps,
        ).to(value.dtype)
