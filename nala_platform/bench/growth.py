"""How a figure grows with the size. Pure functions on numbers."""

import math
from collections.abc import Sequence


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """The slope of the least-squares line through (log size, log value); None for fewer than two sizes.

    >>> round(exponent([64, 256, 1024], [3 * n**1.5 for n in (64, 256, 1024)]), 6)
    1.5
    """
    if len(set(sizes)) < 2:
        return None
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    along = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return along / sum((a - mean_x) ** 2 for a in x)
