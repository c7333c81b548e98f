"""Semantic segmentation: a feature pyramid of any timm backbone, and a decoder of segmentation_models_pytorch.

Shapes: B batch, Y rows, X columns, K classes; pyramid levels have strides 4, 8, 16, 32.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from segmentation_models_pytorch.base import SegmentationHead, initialization
from segmentation_models_pytorch.decoders.fpn.decoder import FPNDecoder
from segmentation_models_pytorch.decoders.upernet.decoder import UPerNetDecoder
from torch import Tensor, nn

from nala_platform.errors import UserError, look_up
from nala_platform.models.backbone import create_backbone

STRIDES = (4, 8, 16, 32)


def _fpn(channels: list[int], width: int) -> tuple[nn.Module, int]:
    """Semantic FPN (Kirillov et al. 2019, arXiv 1901.02446), no dropout of whole channels for narrow ones."""
    out = max(32, width // 2 // 32 * 32)  # smp normalises the branches in 32 groups
    dropout = 0.1 if width >= 256 else 0.0
    decoder = FPNDecoder(channels, pyramid_channels=width, segmentation_channels=out, dropout=dropout)
    return decoder, out


def _upernet(channels: list[int], width: int) -> tuple[nn.Module, int]:
    """UPerNet (Xiao et al. 2018, arXiv 1807.10221). BN on a map pooled to one pixel: train on batches of at least 2."""
    return UPerNetDecoder(channels, decoder_channels=width), width


DECODERS: dict[str, Callable[[list[int], int], tuple[nn.Module, int]]] = {"fpn": _fpn, "upernet": _upernet}
"""Name -> (channels of the levels of strides 1 to 32, width) -> (decoder to stride 4, its output channels)."""


class Segmenter(nn.Module):
    """Images (B, in_chans, Y, X) to logits (B, K, Y, X), for every size.

    Inside, an image is enlarged to multiples of 32, at least 64, by repeating its last row and column, and the logits
    are cropped.

    Args:
        backbone: a timm model name with features at strides 4, 8, 16 and 32, NaLaFormer's among them.
        num_classes: classes K.
        decoder: "fpn" (Semantic FPN) or "upernet".
        in_chans: channels of the images.
        decoder_width: channels of the decoder; None is half the backbone's last width, between 64 and 256.
        options: those of `create_backbone`: attention, stage_attention, alpha_range, alpha_gate, direction,
            learn_alpha, drop_path_rate, pretrained, checkpoint_path, timm_options.

    Raises:
        UserError: an unknown decoder, a backbone without these four strides, or as `create_backbone`.
    """

    def __init__(
        self,
        backbone: str = "nalaformer_nano",
        num_classes: int = 3,
        decoder: str = "fpn",
        in_chans: int = 3,
        decoder_width: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if num_classes < 1:
            raise UserError(f"num_classes must be at least 1, got {num_classes}")
        if decoder_width is not None and decoder_width < 1:
            raise UserError(f"decoder_width is {decoder_width}: it must be 1 or more")
        self.num_classes = num_classes
        self.backbone = create_backbone(backbone, {"features_only": True, "in_chans": in_chans}, **options)
        info: Any = self.backbone.feature_info
        strides, channels = info.reduction(), info.channels()
        if not set(STRIDES) <= set(strides):
            raise UserError(
                f"backbone {backbone} gives features at strides {', '.join(map(str, strides))}; a segmenter needs "
                f"{', '.join(map(str, STRIDES))}: use a pyramid, such as nalaformer_t, convnext_tiny or resnet50"
            )
        self.levels = tuple(strides.index(stride) for stride in STRIDES)
        self.channels_last = getattr(self.backbone, "output_fmt", "NCHW") == "NHWC"
        widths = [channels[level] for level in self.levels]
        width = decoder_width or min(256, max(64, widths[-1] // 2))
        # smp counts the image and a stride-2 level, which neither decoder reads.
        self.decoder, out = look_up(DECODERS, decoder, option="decoder")([in_chans, 0, *widths], width)
        self.head = SegmentationHead(out, num_classes, kernel_size=1, upsampling=4)
        initialization.initialize_decoder(self.decoder)
        initialization.initialize_head(self.head)

    def forward(self, image_BCYX: Tensor) -> Tensor:
        """See the class."""
        height, width = image_BCYX.shape[-2:]
        down, right = _padding(height), _padding(width)
        padded_BCYX = F.pad(image_BCYX, (0, right, 0, down), mode="replicate")
        features = self.backbone(padded_BCYX)
        levels = [features[level] for level in self.levels]
        if self.channels_last:
            levels = [level_BYXC.permute(0, 3, 1, 2) for level_BYXC in levels]
        return self.head(self.decoder([padded_BCYX, padded_BCYX, *levels]))[..., :height, :width]


def _padding(length: int) -> int:
    """Pixels to add to a side. From 64 on, the coarsest map has more than one pixel, which group norms need."""
    rows = (length + STRIDES[-1] - 1) // STRIDES[-1]
    # max(2, rows) without a comparison, which torch.jit.trace would take for a constant and torch.fx cannot make
    return (rows + 1 // rows) * STRIDES[-1] - length
