"""The vision block.

Shapes: B batch, C channels, Y rows, X columns.
"""

from collections.abc import Callable

import torch
from timm.layers.drop import DropPath
from torch import Tensor, nn

from nala_platform.attention import Rope
from nala_platform.nn.feed_forward import ConvFeedForward
from nala_platform.nn.mixer import GatedAttention


class ChannelNorm(nn.Module):
    """A norm over the channels of ``(B, C, Y, X)``, returned channels-last ``(B, Y, X, C)``.

    Args:
        dim: channels C.
        norm_layer: makes the norm from C, over the last axis; None is LayerNorm with eps 1e-6.
    """

    def __init__(self, dim: int, norm_layer: Callable[[int], nn.Module] | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-6) if norm_layer is None else norm_layer(dim)

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """See the class."""
        return self.norm(x_BCYX.permute(0, 2, 3, 1))


class Block(nn.Module):
    """``x += cpe1(x); x += gamma_1 * attn(norm1(x)); x += cpe2(x); x += gamma_2 * ffn(norm2(x))``.

    cpe: 3x3 depthwise convolutions that tell a token its place. Input and output ``(B, C, Y, X)``; the attention and
    the feed-forward part work channels-last, so that an input in torch's ``channels_last`` format is never copied.
    Parameter names are those of the released NaLaFormer.

    Args:
        dim: channels C.
        mixer: ``(x_BYXC, rope) -> x_BYXC``.
        feed_forward: ``x_BYXC -> x_BYXC``.
        layer_scale: the start of ``gamma_1`` and ``gamma_2``, parameters ``(1, C, 1, 1)``.
        drop_path: probability with which a sample leaves out a residual branch in training.
        norm_layer: as in `ChannelNorm`.
        dilation: of the position encodings' convolutions, in tokens.
    """

    def __init__(
        self,
        dim: int,
        mixer: GatedAttention,
        feed_forward: ConvFeedForward,
        *,
        layer_scale: float = 1.0,
        drop_path: float = 0.0,
        norm_layer: Callable[[int], nn.Module] | None = None,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        self.gamma_1 = nn.Parameter(torch.full((1, dim, 1, 1), float(layer_scale)))
        self.gamma_2 = nn.Parameter(torch.full((1, dim, 1, 1), float(layer_scale)))
        self.cpe1 = nn.Conv2d(dim, dim, 3, padding=dilation, dilation=dilation, groups=dim)
        self.norm1 = ChannelNorm(dim, norm_layer)
        self.attn = mixer
        self.cpe2 = nn.Conv2d(dim, dim, 3, padding=dilation, dilation=dilation, groups=dim)
        self.norm2 = ChannelNorm(dim, norm_layer)
        self.ffn = feed_forward
        self.drop_path = DropPath(drop_path)

    def forward(self, x_BCYX: Tensor, rope: Rope) -> Tensor:
        """See the class; ``rope`` goes to the mixer."""
        x_BCYX = x_BCYX + self.cpe1(x_BCYX)
        mixed_BCYX = self.attn(self.norm1(x_BCYX), rope).permute(0, 3, 1, 2)
        x_BCYX = x_BCYX + self.drop_path(self.gamma_1 * mixed_BCYX)
        x_BCYX = x_BCYX + self.cpe2(x_BCYX)
        fed_BCYX = self.ffn(self.norm2(x_BCYX)).permute(0, 3, 1, 2)
        return x_BCYX + self.drop_path(self.gamma_2 * fed_BCYX)
