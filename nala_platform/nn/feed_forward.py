"""The feed-forward part of a vision block.

Shapes: B batch, Y rows, X columns, C channels, W hidden width.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class ConvFeedForward(nn.Module):
    """``fc2(h + dwconv(h))`` with ``h = gelu(fc1(x))``: exact GELU, a 3x3 depthwise convolution as a residual.

    Input and output ``(B, Y, X, C)``. Parameter names are those of the released NaLaFormer.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)

    def forward(self, x_BYXC: Tensor) -> Tensor:
        """See the class."""
        hidden_BYXW = F.gelu(self.fc1(x_BYXC))
        near_BWYX = self.dwconv(hidden_BYXW.permute(0, 3, 1, 2))
        return self.fc2(hidden_BYXW + near_BWYX.permute(0, 2, 3, 1))
