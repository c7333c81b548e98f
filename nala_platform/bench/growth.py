"""How a figure grows with the size. Pure functions on numbers."""

import math
from collections.abc import Sequence


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """The slope of the least-squares line through (log size, log value); None for fewer than two sizes.

    Examples:
        >>> round(exponent([64, 256, 1024], [3 * n**1.5 for n in (64, 256, 1024)]), 6)
        1.5
    """
    if len(set(sizes)) < 2:
        return None
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    along = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return along / sum((a - mean_x) ** 2 for a in x)


def quadratic(points: Sequence[tuple[float, float]], size: float) -> float:
    """What ``b n + c n^2`` through the two largest of ``points`` (size, value) gives at ``size``.

    For memory that holds an N x N matrix beside what grows with N.

    Examples:
        >>> quadratic([(1, 7.0), (10, 2 * 10 + 3 * 10**2), (20, 2 * 20 + 3 * 20**2)], 100)
        30200.0
    """
    (n, at_n), (m, at_m) = sorted(points)[-2:]
    square = (at_m / m - at_n / n) / (m - n)
    return (at_n / n - square * n) * size + square * size**2


def linear(points: Sequence[tuple[float, float]], size: float) -> float:
    """What ``a + b n`` through the two largest of ``points`` (size, value) gives at ``size``.

    Examples:
        >>> linear([(10, 25.0), (20, 45.0)], 100)
        205.0
    """
    (n, at_n), (m, at_m) = sorted(points)[-2:]
    return at_m + (at_m - at_n) / (m - n) * (size - m)
