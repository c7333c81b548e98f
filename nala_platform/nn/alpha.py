"""The learned range of NaLa's query exponent.

Shapes: H heads.
"""

import torch
from torch import Tensor, nn

from nala_platform.errors import UserError

BOUND_MIN = 0.1
"""Below it ``x ** alpha`` is a step for every x that half precision holds, and its slope at small x is without use."""
BOUND_MAX = 8.0
"""Above it the features of a head of 64 fall under 1e-7 of each other: the query looks at its largest entry alone."""
MIN_WIDTH = 0.05
"""The least ``high - low``: strict order survives the rounding of half-precision weights."""


class LearnedAlphaRange(nn.Module):
    """``(low_H, high_H)``, the query exponent's range, learned for each head, in order and in range whatever the step.

        low  = BOUND_MIN + u(a) (BOUND_MAX - MIN_WIDTH - BOUND_MIN)
        high = (low + MIN_WIDTH) + u(b) (BOUND_MAX - low - MIN_WIDTH)          u(x) = (1 + x / (1 + |x|)) / 2

    so that ``BOUND_MIN <= low < high <= BOUND_MAX`` for every real a and b. u is algebraic and not the logistic
    function because its slope falls as ``x ** -2``: a head that a wild step threw against a bound can come back.

    Args:
        heads: number of heads H; each has its own ``a`` and ``b`` (parameters ``(H,)``).
        alpha_range: ``(low, high)`` that every head starts from.

    Raises:
        UserError: ``alpha_range`` outside the bounds, or narrower than ``MIN_WIDTH``.

    Examples:
        >>> LearnedAlphaRange(2, (1.5, 4.5))()[1].tolist()
        [4.5, 4.5]
    """

    def __init__(self, heads: int, alpha_range: tuple[float, float]) -> None:
        super().__init__()
        low, high = alpha_range
        wide_enough = high - low > MIN_WIDTH - 1e-9  # 0.15 - 0.1 is a little less than 0.05
        if not (BOUND_MIN <= low and high <= BOUND_MAX and wide_enough):
            raise UserError(
                f"learn_alpha starts from alpha_range and keeps it in [{BOUND_MIN}, {BOUND_MAX}] with at least "
                f"{MIN_WIDTH} between its ends, got ({low}, {high})"
            )
        share_low = (low - BOUND_MIN) / (BOUND_MAX - MIN_WIDTH - BOUND_MIN)
        room = BOUND_MAX - low - MIN_WIDTH
        share_high = (high - low - MIN_WIDTH) / room if room > 0 else 0.5
        self.low = nn.Parameter(torch.full((heads,), _inverse_unit(share_low)))
        self.high = nn.Parameter(torch.full((heads,), _inverse_unit(share_high)))

    def forward(self) -> tuple[Tensor, Tensor]:
        """``(low_H, high_H)``, float32 whatever the dtype of the weights."""
        low_H = BOUND_MIN + _unit(self.low.float()) * (BOUND_MAX - MIN_WIDTH - BOUND_MIN)
        # lerp hits its ends exactly, where a product of rounded numbers could pass the bound.
        return low_H, torch.lerp(low_H + MIN_WIDTH, torch.full_like(low_H, BOUND_MAX), _unit(self.high.float()))


def _unit(x: Tensor) -> Tensor:
    return 0.5 + 0.5 * x / (1 + x.abs())


def _inverse_unit(share: float) -> float:
    # A start at a bound would be at infinity, without a gradient.
    signed = 2 * min(max(share, 1e-6), 1 - 1e-6) - 1
    return signed / (1 - abs(signed))
