"""The feature maps of ``feature_map`` and their gradients in closed form, for one block of tokens that fits a cache.

A component x of a vector of norm n becomes a signed size t with the sign of x, ``log|t| = a(n) (log|x| - log n)`` for a
query and ``log|t| = p log|x|`` for a key, and the size two features: ``[max(t, 0) ; min(t, 0)]``, or ``[|t| cos theta ;
|t| sin theta]`` with theta = (pi/4) tanh(h), h = 20 x / n. The second half of the split is negative in queries and keys
alike, which no product of the two can tell. With f the features and g the gradient that reaches them,

    w_d = g1_d f1_d + g2_d f2_d = dL / d log|t_d|        r_d = (g2_d f1_d - g1_d f2_d) (pi/4) (1 - tanh(h_d)^2)
    key     dL/dx_d = p w_d / x_d
    query   dL/dx_d = a w_d / x_d + (x_d / n) (a'(n) sum_d w_d u_d - a/n sum_d w_d)          u_d = log|x_d| - log n
    both    dL/dx_d += (20 r_d - (x_d / n) sum_d r_d h_d) / n          (cosine alone)

Logarithms and exponentials in place of powers, and no choice between two tensors, because those are vectorised and
powers and ``torch.where`` on a CPU are not: a factor of four and of thirty. To x the least normal number is added
before the logarithm and the division, which changes 0 alone; a component that is 0 has t = 0, w = 0 and gradient 0.
Written once for PyTorch's own kernels and for the compiler, which differ in ``words``.

Shapes: L tokens of a block, D head size; leading axes are left alone. Everything is float32 or float64.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nala_platform.attention.blocks.words import Words
from nala_platform.attention.feature_map import GATES, NORM_EPS, SHARPNESS, WIDEST_ANGLE

Bound = Tensor | float
"""An end of the range of exponents: a number, or a tensor that broadcasts against (..., L, 1)."""


class Map(NamedTuple):
    """What a feature map is, but for the range of its exponent: see ``nala_attention``."""

    direction: str
    alpha_gate: str
    key_power: float


class Base(NamedTuple):
    """What both maps take from a block x."""

    x_LD: Tensor
    safe_LD: Tensor
    """x, but the least normal number where that is 0"""
    norm_L1: Tensor | None
    angle: tuple[Tensor, Tensor, Tensor] | None
    """tanh h, cos theta, sin theta (cosine alone)"""


class Query(NamedTuple):
    """A block of queries with what its gradient needs."""

    feature_LF: Tensor
    base: Base
    log_LD: Tensor
    """log|x|"""
    exponent_L1: Tensor
    gate_L1: Tensor


class Key(NamedTuple):
    """A block of keys with what its gradient needs."""

    feature_LF: Tensor
    base: Base


def query_map(query_LD: Tensor, low: Bound, high: Bound, what: Map, words: Words) -> Query:
    """phi_q of a block."""
    norm_L1 = _norm(query_LD)
    base = _base(query_LD, norm_L1, what.direction, words)
    gate_L1 = torch.tanh(norm_L1 * GATES[what.alpha_gate])
    exponent_L1 = low + (high - low) * gate_L1
    log_LD = torch.abs(base.safe_LD, out=words.like(query_LD)).log_()
    # t = x exp((a - 1) log|x| - a log n): the sign comes along, 0 stays 0, and what is raised never overflows
    signed_LD = torch.mul(log_LD, exponent_L1 - 1, out=words.like(query_LD))
    signed_LD.sub_(exponent_L1 * norm_L1.log()).exp_().mul_(query_LD)
    return Query(_features(signed_LD, base, words), base, log_LD, exponent_L1, gate_L1)


def key_map(key_LD: Tensor, what: Map, words: Words) -> Key:
    """phi_k of a block."""
    base = _base(key_LD, _norm(key_LD) if what.direction == "cosine" else None, what.direction, words)
    return Key(_features(_signed_power(base, what.key_power, words), base, words), base)


def query_gradient(
    query: Query, grad_LF: Tensor, low: Bound, high: Bound, what: Map, words: Words
) -> tuple[Tensor, Tensor]:
    """(dL/dx (..., L, D), dL/da (..., L, 1)) from dL/dphi_q."""
    weight_LD, angular_LD = _weights(query.feature_LF, grad_LF, query.base, words)
    norm_L1 = query.base.norm_L1
    assert norm_L1 is not None
    total_L1 = weight_LD.sum(-1, keepdim=True)
    product_LD = torch.mul(weight_LD, query.log_LD, out=words.like(weight_LD))
    by_exponent_L1 = product_LD.sum(-1, keepdim=True) - norm_L1.log() * total_L1
    exponent_slope_L1 = (high - low) * GATES[what.alpha_gate] * (1 - query.gate_L1.square())
    radial_L1 = (exponent_slope_L1 * by_exponent_L1 - query.exponent_L1 * total_L1 / norm_L1) / norm_L1
    return _to_x(weight_LD.mul_(query.exponent_L1), angular_LD, radial_L1, query.base), by_exponent_L1


def key_gradient(key: Key, grad_LF: Tensor, what: Map, words: Words) -> Tensor:
    """dL/dx (..., L, D) from dL/dphi_k."""
    weight_LD, angular_LD = _weights(key.feature_LF, grad_LF, key.base, words)
    return _to_x(weight_LD.mul_(what.key_power), angular_LD, None, key.base)


def _norm(x_LD: Tensor) -> Tensor:
    return (torch.linalg.vector_norm(x_LD, dim=-1, keepdim=True).square_() + NORM_EPS).sqrt_()


def _signed_power(base: Base, exponent: float, words: Words) -> Tensor:
    out_LD = words.like(base.x_LD)
    # PyTorch has kernels of its own for the second and third power
    if exponent in (1.0, 3.0):
        return torch.pow(base.x_LD, exponent, out=out_LD)
    if exponent == 2.0:
        return torch.abs(base.x_LD, out=out_LD).mul_(base.x_LD)
    return torch.abs(base.safe_LD, out=out_LD).log_().mul_(exponent - 1).exp_().mul_(base.x_LD)


def _base(x_LD: Tensor, norm_L1: Tensor | None, direction: str, words: Words) -> Base:
    safe_LD = torch.add(x_LD, torch.finfo(x_LD.dtype).tiny, out=words.like(x_LD))
    if direction == "split":
        return Base(x_LD, safe_LD, norm_L1, None)
    assert norm_L1 is not None
    tanh_LD = (x_LD * (SHARPNESS / norm_L1)).tanh_()
    theta_LD = tanh_LD * WIDEST_ANGLE
    return Base(x_LD, safe_LD, norm_L1, (tanh_LD, theta_LD.cos(), theta_LD.sin()))


def _features(signed_LD: Tensor, base: Base, words: Words) -> Tensor:
    if base.angle is None:
        return words.split(signed_LD, words)
    _, cos_LD, sin_LD = base.angle
    size_LD = signed_LD.abs()
    return torch.cat((size_LD * cos_LD, size_LD * sin_LD), dim=-1)


def _weights(feature_LF: Tensor, grad_LF: Tensor, base: Base, words: Words) -> tuple[Tensor, Tensor | None]:
    """w and r of the module's text; r is None where there is no theta."""
    (first_LD, second_LD), (grad_first_LD, grad_second_LD) = feature_LF.chunk(2, dim=-1), grad_LF.chunk(2, dim=-1)
    weight_LD = torch.mul(first_LD, grad_first_LD, out=words.like(base.x_LD)).addcmul_(second_LD, grad_second_LD)
    if base.angle is None:
        return weight_LD, None
    angular_LD = (first_LD * grad_second_LD).addcmul_(second_LD, grad_first_LD, value=-1)
    return weight_LD, angular_LD * (WIDEST_ANGLE * (1 - base.angle[0].square()))


def _to_x(direct_LD: Tensor, angular_LD: Tensor | None, radial_L1: Tensor | None, base: Base) -> Tensor:
    """direct / x + x radial, and what comes by way of theta."""
    grad_LD = direct_LD.div_(base.safe_LD)
    if angular_LD is not None:
        assert base.norm_L1 is not None
        scale_L1 = SHARPNESS / base.norm_L1
        grad_LD = grad_LD.addcmul_(angular_LD, scale_L1)
        turned_L1 = (angular_LD * base.x_LD).sum(-1, keepdim=True) * scale_L1 / base.norm_L1.square()
        radial_L1 = -turned_L1 if radial_L1 is None else radial_L1 - turned_L1
    return grad_LD if radial_L1 is None else grad_LD.addcmul_(base.x_LD, radial_L1)
