"""Where a map's channels lie in memory.

Shapes: B batch, C channels, Y rows, X columns.
"""

import torch
from torch import Tensor

from nala_platform.attention.gradient import is_transformed


def channels_last(x_BCYX: Tensor) -> Tensor:
    """``x_BCYX`` with the channels of a pixel side by side, which the blocks' linear layers want.

    One copy of the image spares two in every block. Under ``torch.func`` the tensor is returned as it is: ``vmap`` has
    no rule for memory formats, and no value depends on them.
    """
    return x_BCYX if is_transformed() else x_BCYX.contiguous(memory_format=torch.channels_last)
