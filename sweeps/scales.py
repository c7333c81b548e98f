"""What an axis and a scale of colours show, of values of which some may be far off."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from .plan import Objective


class Bounds(NamedTuple):
    """An interval that holds the good values; what lies beyond `worst` is far off."""

    best: float
    worst: float
    is_log: bool = False

    @property
    def ends(self) -> tuple[float, float]:
        """The two, in order."""
        return min(self.best, self.worst), max(self.best, self.worst)

    def limits(self) -> tuple[float, float]:
        """The ends, with a margin."""
        low, high = map(math.log10, self.ends) if self.is_log else self.ends
        margin = 0.05 * (high - low) or 0.05 * abs(low) or 1.0
        return (10 ** (low - margin), 10 ** (high + margin)) if self.is_log else (low - margin, high + margin)

    def fit(self, axes: Axes) -> None:
        """Let the upright axis show them."""
        axes.set_yscale("log" if self.is_log else "linear")
        axes.set_ylim(*self.limits())


def is_wide(values: Sequence[float]) -> bool:
    """Whether only a logarithm shows them all."""
    return min(values) > 0 and max(values) > 20 * min(values)


def bounds(values: Sequence[float], objective: Objective) -> Bounds:
    """From the best of ``values`` to the worst that is no further from their median than four times the best is.

    One diverged trial would else leave one colour, and a flat line, for all the others. Where values are of several
    sizes, distances are those of the logarithms, and twice the best's.

    Examples:
        >>> bounds([1.0, 2.0, 3.0, 19.0], Objective("val/loss", "minimize", "best"))
        Bounds(best=1.0, worst=8.5, is_log=False)
    """
    sign = 1 if objective.direction == "minimize" else -1
    is_log = is_wide(values)
    losses = sorted(sign * (math.log10(value) if is_log else value) for value in values)
    middle = statistics.median(losses)
    furthest = middle + (2 if is_log else 4) * (middle - losses[0])
    worst = min(losses[-1], furthest) if furthest > losses[0] else losses[-1]
    ends = [10 ** (sign * loss) if is_log else sign * loss for loss in (losses[0], worst)]
    return Bounds(ends[0], ends[1], is_log)


class Shades:
    """Colours of values between bounds.

    Args:
        bounds: of the values.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        low, high = bounds.ends
        self.norm = (LogNorm if bounds.is_log else Normalize)(low, high, clip=True)
        # pale yellow is the worst, whichever end that is
        self.map = "viridis_r" if bounds.best >= bounds.worst else "viridis"
        self.scale = ScalarMappable(self.norm, self.map)

    def __call__(self, value: float) -> tuple[float, ...]:
        """RGBA."""
        return tuple(self.scale.to_rgba(value))  # pyright: ignore[reportArgumentType] - a scalar gives one colour

    def bar(self, figure: Figure, axes: Axes | Sequence[Axes], objective: Objective) -> None:
        """Draw the scale beside ``axes``, if there is more than one value."""
        if self.bounds.best != self.bounds.worst:
            figure.colorbar(self.scale, ax=axes, label=objective.metric, pad=0.02)
