"""The feed-forward part of a vision block.

Shapes: B batch, Y rows, X columns, C channels, W hidden width.
"""

from collections.abc import Callable

from torch import Tensor, nn


class ConvFeedForward(nn.Module):
    """``fc2(h + dwconv(h))`` with ``h = gelu(fc1(x))``: exact GELU, a 3x3 depthwise convolution as a residual.

    Input and output ``(B, Y, X, C)``. Parameter names are those of the released NaLaFormer.

    Args:
        dim: channels C.
        hidden: hidden width W.
        act_layer: makes the activation.
        drop: probability of the dropout before and after ``fc2``.
        dilation: of the depthwise convolution, in tokens.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        act_layer: Callable[[], nn.Module] = nn.GELU,
        drop: float = 0.0,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = act_layer()
        self.fc2 = nn.Linear(hidden, dim)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden)
        self.drop = nn.Dropout(drop)

    def forward(self, x_BYXC: Tensor) -> Tensor:
        """See the class."""
        hidden_BYXW = self.act(self.fc1(x_BYXC))
        near_BWYX = self.dwconv(hidden_BYXW.permute(0, 3, 1, 2))
        return self.drop(self.fc2(self.drop(hidden_BYXW + near_BWYX.permute(0, 2, 3, 1))))
