"""The norm-aware feature maps of NaLa (arXiv 2506.21137).

A query enters as its direction q^ = q / n raised to a power alpha(n) that grows with its norm n; a key enters raised to
a fixed power p, so that its norm is kept. Everything here is float32 (float64 for float64 input).

Shapes: H heads, N tokens, D head size; features are F = 2D. A leading batch axis is left alone.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nala_platform.attention.precision import widen, widen_bounded
from nala_platform.attention.signature import AlphaRange

NORM_EPS = 1e-24
"""Under the root of every norm: 1e-12 there is a safe divisor, far below any norm that half precision holds."""


WIDEST_ANGLE, SHARPNESS = math.pi / 4, 20.0
"""theta(x) = pi/4 tanh(20 x / ||x||)"""


def norm(x_ND: Tensor) -> Tensor:
    """sqrt(sum_d x_d^2 + 1e-24), (..., N, 1): a norm whose gradient at x = 0 is 0 and not 0/0."""
    x_ND = widen(x_ND)
    return (x_ND.square().sum(-1, keepdim=True) + NORM_EPS).sqrt()


GATES = {"tanh": 1.0, "sigmoid": 0.5}
"""g(n) = tanh(slope n): 2 sigmoid(n) - 1 = tanh(n / 2), which does not cancel at small n."""


def alpha(norm_HN1: Tensor, *, alpha_range: AlphaRange, alpha_gate: str) -> Tensor:
    """The query exponent low + (high - low) g(n), in [low, high], (..., H, N, 1).

    g(n) is tanh(n) for ``"tanh"`` and 2 sigmoid(n) - 1 for ``"sigmoid"``; low and high are floats or (H,).
    """
    low, high = (
        bound.to(norm_HN1.dtype)[:, None, None] if isinstance(bound, Tensor) else bound for bound in alpha_range
    )
    return low + (high - low) * torch.tanh(norm_HN1 * GATES[alpha_gate])


def power(base: Tensor, exponent: Tensor | float) -> Tensor:
    """base ** exponent for base >= 0, exponent > 0; at base = 0 the value and the gradients are 0.

    For an exponent below 1 the true gradient at 0 is infinite, and the formula of the exponent's holds log 0. The one
    exception is exponent = 1 as a float, where the gradient at 0 is the right-hand one, 1.
    """
    if not isinstance(exponent, Tensor) and exponent >= 1:
        return base**exponent
    # "is 0" and not "is above 0", which would turn a NaN into a silent 0. The inner choice keeps inf out of the
    # backward pass: with the outer one alone the gradient would be 0 * inf = NaN.
    zero = base == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, base) ** exponent)


def _split(size_ND: Tensor, x_ND: Tensor) -> Tensor:
    signed_ND = size_ND * x_ND.detach().sign()
    return torch.cat((signed_ND.relu(), (-signed_ND).relu()), dim=-1)


def _cosine(size_ND: Tensor, x_ND: Tensor) -> Tensor:
    theta_ND = WIDEST_ANGLE * torch.tanh(SHARPNESS * x_ND / norm(x_ND))
    return torch.cat((size_ND * theta_ND.cos(), size_ND * theta_ND.sin()), dim=-1)


DIRECTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"split": _split, "cosine": _cosine}
"""direction -> (size (..., N, D), x (..., N, D)) -> features (..., N, 2D)"""


def query_features(query_HND: Tensor, *, alpha_range: AlphaRange, alpha_gate: str, direction: str) -> Tensor:
    """phi_q, (..., H, N, 2D), with q^ = q / ||q||, alpha = alpha(||q||).

    ``"split"``: [relu(q^)^alpha ; relu(-q^)^alpha]. ``"cosine"``: |q^|^alpha [cos theta(q) ; sin theta(q)] with
    theta(x) = (pi/4) tanh(20 x / ||x||). A zero query has zero features and a zero gradient.
    """
    query_HND = widen_bounded(query_HND)
    norm_HN1 = norm(query_HND)
    exponent_HN1 = alpha(norm_HN1, alpha_range=alpha_range, alpha_gate=alpha_gate)
    return DIRECTIONS[direction](power(query_HND.abs() / norm_HN1, exponent_HN1), query_HND)


def key_features(key_HND: Tensor, *, key_power: float, direction: str) -> Tensor:
    """phi_k, (..., H, N, 2D): as ``query_features`` with |k|^p in the place of |q^|^alpha."""
    key_HND = widen_bounded(key_HND)
    return DIRECTIONS[direction](power(key_HND.abs(), key_power), key_HND)
