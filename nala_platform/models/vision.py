"""Vision networks for classification: NaLaFormer in all sizes, and any timm model behind the same door."""

from typing import Any

from torch import nn

from nala_platform.errors import UserError
from nala_platform.models.backbone import create_backbone
from nala_platform.models.nalaformer import NaLaFormer
from nala_platform.models.variants import (
    VARIANTS,
    Variant,
    nalaformer_b,
    nalaformer_l,
    nalaformer_nano,
    nalaformer_s,
    nalaformer_t,
    nalaformer_xt,
)

__all__ = [
    "VARIANTS",
    "NaLaFormer",
    "Variant",
    "classifier",
    "nalaformer_b",
    "nalaformer_l",
    "nalaformer_nano",
    "nalaformer_s",
    "nalaformer_t",
    "nalaformer_xt",
]


def classifier(
    backbone: str = "nalaformer_nano",
    num_classes: int = 10,
    in_chans: int = 3,
    drop_rate: float = 0.0,
    **options: Any,
) -> nn.Module:
    """An image classifier: images (B, in_chans, Y, X) to logits (B, num_classes).

    Args:
        backbone: a timm model name, NaLaFormer's among them.
        num_classes: classes; the network tells it as ``.num_classes``.
        in_chans: channels of the images.
        drop_rate: dropout before the last layer.
        options: those of `create_backbone`: attention, stage_attention, alpha_range, alpha_gate, direction,
            learn_alpha, drop_path_rate, pretrained, checkpoint_path, timm_options.

    Raises:
        UserError: as `create_backbone`.
    """
    if num_classes < 1:
        raise UserError(f"num_classes must be at least 1, got {num_classes}")
    role = {"num_classes": num_classes, "in_chans": in_chans, "drop_rate": drop_rate}
    return create_backbone(backbone, role, **options)
