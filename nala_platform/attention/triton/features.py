"""NaLa's feature maps and their gradients on a tile of tokens held in registers, in Triton's language.

The twin of ``feature_map`` with gradients in closed form. Everything is float32. ``plan`` is ``launch.Plan``.

Shapes: N tokens of a tile, D head size, padded to a power of two with columns of 0, whose features are 0.
"""
# Triton types the arguments of a kernel itself; an annotation would mean something else to it.
# ruff: noqa: ANN001, ANN201
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import math

import triton
import triton.language as tl

from nala_platform.attention import feature_map

NORM_EPS = tl.constexpr(feature_map.NORM_EPS)
QUARTER_PI = tl.constexpr(math.pi / 4)
# A number of this kind stands right of a tensor: left of one, the interpreter cannot multiply it.
STEEPNESS = tl.constexpr(20.0)  # of the angle in the cosine direction: theta = (pi/4) tanh(20 x / ||x||)


@triton.jit
def tanh(x):
    """By its series near 0, where 1 - 2 / (e^2x + 1) cancels; relative error below 4e-7."""
    size, square = tl.abs(x), x * x
    near = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    far = 1 - 2 / (tl.exp(2 * size) + 1)
    return tl.where(size < 0.25, near, tl.where(x < 0, -far, far))


@triton.jit
def cos_sin(angle):
    """For |angle| <= pi/4 by their series: the library's, made for any angle, branch into a slow path."""
    square = angle * angle
    cos = 1 + square * (-1 / 2 + square * (1 / 24 + square * (-1 / 720 + square * (1 / 40320 - square / 3628800))))
    sin = angle * (1 + square * (-1 / 6 + square * (1 / 120 + square * (-1 / 5040 + square / 362880))))
    return cos, sin


@triton.jit
def power(base, exponent):
    """base ** exponent for base >= 0; 0 at 0 for any exponent. A NaN stays one."""
    zero = base == 0
    return tl.where(zero, 0.0, tl.exp2(exponent * tl.log2(tl.where(zero, 1.0, base))))


@triton.jit
def norm(x_ND):
    """sqrt(sum_d x_d^2 + 1e-24), (N, 1)."""
    return tl.sqrt(tl.sum(x_ND * x_ND, 1) + NORM_EPS)[:, None]


@triton.jit
def half(size_ND, x_ND, norm_N1, SECOND: tl.constexpr, plan: tl.constexpr):
    """The first or the second half of the features: the size of each component, times its direction."""
    if plan.COSINE:
        cos_ND, sin_ND = cos_sin(tanh((x_ND / norm_N1) * STEEPNESS) * QUARTER_PI)
        half_ND = size_ND * (sin_ND if SECOND else cos_ND)
    elif SECOND:  # the choice is by the other sign, so that a NaN is in both halves
        half_ND = tl.where(x_ND > 0, 0.0, size_ND)
    else:
        half_ND = tl.where(x_ND < 0, 0.0, size_ND)
    return half_ND


@triton.jit
def half_gradient(grad_ND, x_ND, norm_N1, SECOND: tl.constexpr, plan: tl.constexpr):
    """A gradient of one half as (along, across): that of the size, and that of the angle but for the size."""
    across_ND = tl.zeros_like(x_ND)
    if plan.COSINE:
        cos_ND, sin_ND = cos_sin(tanh((x_ND / norm_N1) * STEEPNESS) * QUARTER_PI)
        along_ND = grad_ND * (sin_ND if SECOND else cos_ND)
        across_ND = grad_ND * (cos_ND if SECOND else -sin_ND)
    elif SECOND:
        along_ND = tl.where(x_ND < 0, grad_ND, 0.0)
    else:
        along_ND = tl.where(x_ND < 0, 0.0, grad_ND)
    return along_ND, across_ND


@triton.jit
def angle_gradient(size_ND, across_ND, x_ND, norm_N1, plan: tl.constexpr):
    """The part of the gradient of x that comes through the direction; 0 where that is the sign alone."""
    grad_x_ND = tl.zeros_like(x_ND)
    if plan.COSINE:
        unit_ND = x_ND / norm_N1
        bend_ND = tanh(unit_ND * STEEPNESS)
        grad_unit_ND = size_ND * across_ND * (1 - bend_ND * bend_ND) * (QUARTER_PI * STEEPNESS)
        grad_x_ND = (grad_unit_ND - unit_ND * tl.sum(grad_unit_ND * unit_ND, 1)[:, None]) / norm_N1
    return grad_x_ND


@triton.jit
def gate(norm_N1, plan: tl.constexpr):
    """g(n) and g'(n)."""
    if plan.SIGMOID:
        gate_N1 = tanh(norm_N1 / 2)
        slope_N1 = (1 - gate_N1 * gate_N1) / 2
    else:
        gate_N1 = tanh(norm_N1)
        slope_N1 = 1 - gate_N1 * gate_N1
    return gate_N1, slope_N1


@triton.jit
def query_size(x_ND, low, high, plan: tl.constexpr):
    """|q^| ** alpha(n), and n."""
    norm_N1 = norm(x_ND)
    gate_N1, _ = gate(norm_N1, plan)
    return power(tl.abs(x_ND) / norm_N1, low + (high - low) * gate_N1), norm_N1


@triton.jit
def query_gradient(x_ND, low, high, along_ND, across_ND, plan: tl.constexpr):
    """From the gradients of phi_q, as ``half_gradient``s sum: those of x, and of low and high by each token (N, 1).

    With u = |x| / n, w = along size and a = alpha(n):
    dL/dx = sign(x) along a u^(a-1) / n + (x/n) (a'(n) sum w log u - (a/n) sum w) + the angle's; 0 where x is 0.
    """
    norm_N1 = norm(x_ND)
    gate_N1, slope_N1 = gate(norm_N1, plan)
    alpha_N1 = low + (high - low) * gate_N1
    ratio_ND = tl.abs(x_ND) / norm_N1
    size_ND = power(ratio_ND, alpha_N1)

    weight_ND = along_ND * size_ND
    log_ND = tl.log(tl.where(ratio_ND == 0, 1.0, ratio_ND))
    grad_alpha_N1 = tl.sum(weight_ND * log_ND, 1)[:, None]
    grad_norm_N1 = grad_alpha_N1 * (high - low) * slope_N1 - alpha_N1 / norm_N1 * tl.sum(weight_ND, 1)[:, None]
    own_ND = along_ND * alpha_N1 * power(ratio_ND, alpha_N1 - 1) / norm_N1
    grad_x_ND = tl.where(x_ND < 0, -own_ND, own_ND) + x_ND / norm_N1 * grad_norm_N1
    grad_x_ND += angle_gradient(size_ND, across_ND, x_ND, norm_N1, plan)
    return grad_x_ND, grad_alpha_N1 * (1 - gate_N1), grad_alpha_N1 * gate_N1


@triton.jit
def whole_power(size_ND, exponent: tl.constexpr):
    """size ** exponent by products for 1 ... 4, else by ``power``."""
    if exponent == 1:
        result_ND = size_ND
    elif exponent == 2:
        result_ND = size_ND * size_ND
    elif exponent == 3:
        result_ND = size_ND * size_ND * size_ND
    elif exponent == 4:
        result_ND = size_ND * size_ND * (size_ND * size_ND)
    else:
        result_ND = power(size_ND, exponent)
    return result_ND


@triton.jit
def key_size(x_ND, plan: tl.constexpr):
    """|k| ** p, and n, which the angle alone needs."""
    return whole_power(tl.abs(x_ND), plan.KEY_POWER), norm(x_ND)


@triton.jit
def key_gradient(x_ND, along_ND, across_ND, plan: tl.constexpr):
    """From the gradients of phi_k, as ``half_gradient``s sum: that of x; 0 where x is 0."""
    size_ND, norm_N1 = key_size(x_ND, plan)
    own_ND = along_ND
    if plan.KEY_POWER != 1:
        own_ND = along_ND * plan.KEY_POWER * whole_power(tl.abs(x_ND), plan.KEY_POWER - 1)
    grad_x_ND = tl.where(x_ND == 0, 0.0, tl.where(x_ND < 0, -own_ND, own_ND))
    return grad_x_ND + angle_gradient(size_ND, across_ND, x_ND, norm_N1, plan)


@triton.jit
def swapped(x_ND, plan: tl.constexpr):
    """(x0, x1), (x2, x3), ... -> (x1, x0), (x3, x2), ..."""
    even_NP, odd_NP = tl.split(tl.reshape(x_ND, (plan.BLOCK, plan.PAD_D // 2, 2)))
    return tl.reshape(tl.join(odd_NP, even_NP), (plan.BLOCK, plan.PAD_D))


@triton.jit
def rotated(x_ND, cos_ND, signed_ND, plan: tl.constexpr):
    """R x, with the sines' signs (-, +) in ``signed_ND``; without rope x itself."""
    if plan.ROPE:
        x_ND = x_ND * cos_ND + swapped(x_ND, plan) * signed_ND
    return x_ND


@triton.jit
def unrotated(x_ND, cos_ND, signed_ND, plan: tl.constexpr):
    """R^T x."""
    if plan.ROPE:
        x_ND = x_ND * cos_ND + swapped(x_ND * signed_ND, plan)
    return x_ND
