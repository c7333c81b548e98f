"""Super-resolution: global attention over all low-resolution pixels, added to a bicubic enlargement.

Shapes: B batch, C channels, Y rows, X columns of the low-resolution image, S scale.
"""

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from timm.layers.weight_init import trunc_normal_
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nala_platform.attention import ATTENTION
from nala_platform.errors import UserError, look_up
from nala_platform.models.backbone import nala_options
from nala_platform.nn.block import Block
from nala_platform.nn.feed_forward import ConvFeedForward
from nala_platform.nn.memory_format import channels_last
from nala_platform.nn.mixer import GatedAttention
from nala_platform.nn.rope import rotary_tables

SCALES = (2, 3, 4)
MIDDLE = 0.5  # of the range 0..1 that pixels have; what the first convolution sees is centred on it


class Size(NamedTuple):
    """A row of the table of sizes."""

    dim: int
    depth: int
    heads: int
    mlp_ratio: float


SIZES: dict[str, Size] = {
    "nano": Size(dim=32, depth=4, heads=2, mlp_ratio=2.0),
    "light": Size(dim=96, depth=9, heads=6, mlp_ratio=2.0),
    "base": Size(dim=192, depth=24, heads=6, mlp_ratio=2.0),
}
"""Size -> row; about 0.07, 0.9 and 9 million parameters."""


def bicubic(image_BCYX: Tensor, scale: int) -> Tensor:
    """``(B, C, S Y, S X)`` float32: Pillow's bicubic enlargement (a = -0.5), not rounded or clipped."""
    if torch.onnx.is_in_onnx_export():  # ONNX has no cubic that leaves out what is beyond the border
        height, width = image_BCYX.shape[-2:]
        rows, columns = (_cubic_weights(side, scale, image_BCYX) for side in (height, width))
        return rows @ image_BCYX.float() @ columns.transpose(0, 1)
    # torch's own cubic has a = -0.75; its antialiased one has Pillow's, and enlarging there is nothing to filter
    return F.interpolate(image_BCYX.float(), scale_factor=scale, mode="bicubic", antialias=True)


def _cubic_weights(side: int, scale: int, like: Tensor) -> Tensor:
    """The weights ``(S side, side)`` that pixels of a side have in those of the enlarged one; a row sums to 1."""
    target = (torch.arange(side * scale, device=like.device) + 0.5) / scale - 0.5
    near = (target[:, None] - torch.arange(side, device=like.device)).abs()
    inner, outer = (1.5 * near - 2.5) * near**2 + 1, ((2.5 - 0.5 * near) * near - 4) * near + 2
    weights = torch.where(near < 1, inner, torch.where(near < 2, outer, 0.0))
    return weights / weights.sum(1, keepdim=True)


class Upscaler(nn.Module):
    """Images ``(B, in_chans, Y, X)`` with values in 0..1 to ``(B, in_chans, S Y, S X)`` float32, for every size.

        h = conv(x);  y = bicubic(x) + shuffle( conv( h + conv( blocks(h) ) ) )

    The blocks are NaLaFormer's, isotropic at stride 1: every attention sees all pixels of the image, with 2-D rotary
    positions. The last convolution starts at zero, so an untrained network is the bicubic enlargement and all S x S
    pixels of a position start alike (ICNR, arXiv 1707.02937). The output is not clipped.

    Args:
        size: a name in `SIZES`.
        scale: S, one of 2, 3, 4; the network tells it as ``.scale``.
        in_chans: channels of the images.
        attention: a name in ``nala_platform.attention.ATTENTION``, for all blocks.
        drop_path_rate: stochastic depth of the last block.
        grad_checkpointing: recompute each block in the backward pass instead of keeping what it computed.
        options: those of NaLa: alpha_range, alpha_gate, direction, learn_alpha.

    Raises:
        UserError: an unknown size, scale or attention, or options that do not fit.
    """

    def __init__(
        self,
        size: str = "nano",
        scale: int = 2,
        in_chans: int = 3,
        attention: str = "nala",
        drop_path_rate: float = 0.0,
        grad_checkpointing: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        if scale not in SCALES:
            raise UserError(f"network.scale is {scale}: it must be one of {', '.join(map(str, SCALES))}")
        if in_chans < 1:
            raise UserError(f"network.in_chans is {in_chans}: it must be 1 or more")
        if not 0.0 <= drop_path_rate < 1.0:
            raise UserError(f"network.drop_path_rate is {drop_path_rate}: it must be in [0, 1)")
        dim, depth, heads, mlp_ratio = look_up(SIZES, size, option="size")
        look_up(ATTENTION, attention, option="attention")
        self.scale, self.head_size, self.grad_checkpointing = scale, dim // heads, grad_checkpointing
        mixer_options = nala_options(**options)
        self.shallow = nn.Conv2d(in_chans, dim, 3, padding=1)
        self.blocks = nn.ModuleList(
            Block(
                dim,
                GatedAttention(dim, heads, attention, **mixer_options),
                ConvFeedForward(dim, round(mlp_ratio * dim)),
                drop_path=drop_path_rate * index / max(1, depth - 1),
            )
            for index in range(depth)
        )
        self.merge = nn.Conv2d(dim, dim, 3, padding=1)
        self.to_pixels = nn.Conv2d(dim, in_chans * scale**2, 3, padding=1)
        self.apply(_initialise)
        # ICNR gives the S * S kernels that make one position's pixels the same start, so that no checkerboard is there
        # to unlearn. Zero is such a start; a random shared kernel was 0.3 dB worse after 160 steps, and no smoother.
        nn.init.zeros_(self.to_pixels.weight)
        nn.init.zeros_(cast(Tensor, self.to_pixels.bias))

    def no_weight_decay(self) -> set[str]:
        """Names of LayerScale's gammas and of learned exponents: scales, though some have four axes."""
        ends = ("gamma_1", "gamma_2", "alpha.low", "alpha.high")
        return {name for name, _ in self.named_parameters() if name.endswith(ends)}

    def forward(self, image_BCYX: Tensor) -> Tensor:
        """See the class."""
        shallow_BCYX = x_BCYX = self.shallow(channels_last(image_BCYX - MIDDLE))
        height, width = image_BCYX.shape[-2:]
        rope = rotary_tables(height, width, self.head_size, device=image_BCYX.device)
        for block in self.blocks:
            if self.grad_checkpointing and self.training:
                x_BCYX = cast(Tensor, checkpoint(block, x_BCYX, rope, use_reentrant=False))
            else:
                x_BCYX = block(x_BCYX, rope)
        detail = F.pixel_shuffle(self.to_pixels(shallow_BCYX + self.merge(x_BCYX)), self.scale)
        return bicubic(image_BCYX, self.scale) + detail.float()


def _initialise(module: nn.Module) -> None:
    """Linear layers from a truncated normal of deviation 0.02; convolutions keep torch's own."""
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
