"""Two-dimensional rotary tables.

Shapes: Y rows, X columns, N = Y * X tokens in row-major order, D head size, Q = D / 4 frequencies.
"""

import torch
from torch import Tensor

from nala_platform.attention.tracing import fx_leaf
from nala_platform.errors import UserError

BASE = 10000.0


@fx_leaf
def rotary_tables(
    height: int, width: int, head_size: int, *, device: torch.device, dilation: int = 1
) -> tuple[Tensor, Tensor]:
    """``(cos_ND, sin_ND)``, float32, of the angles by which token ``n = y * width + x`` is rotated.

    Frequencies are ``10000 ** -linspace(0, 1, D / 4)``, each for one interleaved pair and so written twice. The first
    half of the head turns by ``y / dilation * frequency``, the second by ``x / dilation * frequency``. The released
    NaLaFormer has dilation 1; in a stage whose stride was replaced by dilation, two tokens at a distance of
    ``dilation`` are the neighbours of before.

    The tables are computed at each call: the trigonometry is on ``Y + X`` rows only, so that a cache would save less
    than it costs in ``torch.compile`` and ``torch.export``.

    Raises:
        UserError: a head size that four does not divide.

    Examples:
        >>> cos, sin = rotary_tables(2, 3, 8, device=torch.device("cpu"))
        >>> cos.shape, [round(angle, 4) for angle in torch.asin(sin[4]).tolist()]  # token 4 is row 1, column 1
        (torch.Size([6, 8]), [1.0, 1.0, 0.0001, 0.0001, 1.0, 1.0, 0.0001, 0.0001])
    """
    if head_size % 4:
        raise UserError(f"the head size must be a multiple of 4 for 2-D rotary tables, got {head_size}")
    frequency_Q = BASE ** -torch.linspace(0.0, 1.0, head_size // 4, device=device)
    angle_YD = torch.arange(height, device=device)[:, None] / dilation * frequency_Q.repeat_interleave(2)
    angle_XD = torch.arange(width, device=device)[:, None] / dilation * frequency_Q.repeat_interleave(2)
    return _on_grid(angle_YD.cos(), angle_XD.cos()), _on_grid(angle_YD.sin(), angle_XD.sin())


def _on_grid(row_YD: Tensor, column_XD: Tensor) -> Tensor:
    """Join the halves of the head at each point of the grid, (N, D)."""
    height, width = row_YD.shape[0], column_XD.shape[0]
    halves = (row_YD[:, None].expand(-1, width, -1), column_XD[None].expand(height, -1, -1))
    return torch.cat(halves, dim=-1).flatten(0, 1)
