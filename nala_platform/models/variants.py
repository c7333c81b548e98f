"""The sizes of NaLaFormer and their entry functions under timm's names."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import pairwise
from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs
from timm.models._features import FeatureGetterNet
from torch import nn

from nala_platform.errors import UserError, near
from nala_platform.models.checkpoint import accept_whole_model, checkpoint_filter_fn
from nala_platform.models.nalaformer import Downsample, NaLaFormer, Stage
from nala_platform.nn.block import Block
from nala_platform.nn.feed_forward import ConvFeedForward
from nala_platform.nn.layers import activation, last_axis_norm
from nala_platform.nn.mixer import GatedAttention

__all__ = [
    "ENTRIES",
    "RELEASED_ATTENTION",
    "VARIANTS",
    "Variant",
    "build",
    "nalaformer_b",
    "nalaformer_l",
    "nalaformer_nano",
    "nalaformer_s",
    "nalaformer_t",
    "nalaformer_xt",
]

RELEASED_ATTENTION = ("nala", "nala", "softmax", "softmax")
"""The mechanism of each stage in the released models."""

OUTPUT_STRIDES = (8, 16, 32)


@dataclass(frozen=True)
class Variant:
    """One size: a row of the table. Each tuple has an entry a stage."""

    dims: tuple[int, ...]
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    mlp_ratios: tuple[float, ...]
    drop_path: float
    layer_scale: tuple[float, ...]
    projection: int = 1024


ONES = (1.0, 1.0, 1.0, 1.0)

VARIANTS: dict[str, Variant] = {
    "nano": Variant((16, 32, 64, 128), (1, 1, 2, 1), (1, 2, 4, 8), (4.0,) * 4, 0.0, ONES, projection=256),
    "xt": Variant((32, 64, 128, 384), (2, 2, 2, 2), (1, 2, 4, 12), (3.5,) * 4, 0.1, ONES),
    "t": Variant((64, 128, 256, 512), (2, 2, 6, 2), (1, 2, 4, 8), (4.0,) * 4, 0.1, ONES),
    "s": Variant((64, 128, 320, 512), (3, 5, 9, 3), (1, 2, 5, 8), (3.5,) * 4, 0.15, ONES),
    "b": Variant((96, 192, 384, 512), (4, 6, 12, 6), (1, 2, 6, 8), (4.0,) * 4, 0.4, (1.0, 1.0, 1e-6, 1e-6)),
    "l": Variant((96, 192, 448, 640), (4, 7, 19, 8), (1, 2, 7, 10), (3.5,) * 4, 0.55, (1e-6,) * 4),
}
"""Size -> row; the timm name is ``nalaformer_<size>``."""


def build(
    variant: Variant,
    *,
    num_classes: int = 1000,
    in_chans: int = 3,
    global_pool: str = "avg",
    drop_rate: float = 0.0,
    drop_path_rate: float | None = None,
    proj_drop_rate: float = 0.0,
    output_stride: int = 32,
    act_layer: str | Callable[[], nn.Module] = "gelu",
    norm_layer: str | Callable[[int], nn.Module] | None = None,
    attention: str | None = None,
    stage_attention: tuple[str, ...] | None = None,
    alpha_range: tuple[float, float] = (1.5, 4.5),
    alpha_gate: str = "tanh",
    direction: str = "split",
    key_power: float = 3.0,
    learn_alpha: bool = False,
) -> NaLaFormer:
    """A NaLaFormer of the given size.

    Args:
        variant: the size.
        num_classes, in_chans, global_pool, drop_rate: as in `NaLaFormer`.
        drop_path_rate: of the last block, rising linearly from 0 in the first; None is the size's own.
        proj_drop_rate: dropout after the attention's last linear layer and in the feed-forward part.
        output_stride: 8, 16 or 32, the reduction of the last stage: later strides become dilations, as in timm's
            ConvNeXt, so that the same weights fit; the rotary positions keep their distances.
        act_layer: of the stem and the feed-forward part, a name of timm's or what makes the module.
        norm_layer: of the blocks, a name of timm's or what makes the module from C, over the last axis; None is
            LayerNorm with the released networks' eps.
        attention: one mechanism for all four stages; attention="nala" makes every layer linear.
        stage_attention: a mechanism a stage; None with attention=None is `RELEASED_ATTENTION`.
        alpha_range, alpha_gate, direction, key_power: as in `GatedAttention`, checked in every stage.
        learn_alpha: NaLa stages learn low and high per head, starting from alpha_range.

    Raises:
        UserError: both attention and stage_attention, not one name a stage, learn_alpha without a NaLa stage, another
            output_stride, a norm over another axis, or options that a mechanism refuses.
    """
    mechanisms = _mechanisms(attention, stage_attention, len(variant.dims))
    if learn_alpha and "nala" not in mechanisms:
        raise UserError(f"learn_alpha needs a stage with attention 'nala', the stages have {', '.join(mechanisms)}")
    mixing = {"alpha_range": alpha_range, "alpha_gate": alpha_gate, "direction": direction, "key_power": key_power}
    act_layer, norm_layer = activation(act_layer), last_axis_norm(norm_layer)
    stages = _stages(
        variant,
        [
            partial(GatedAttention, attention=name, learn_alpha=learn_alpha and name == "nala", **mixing)
            for name in mechanisms
        ],
        partial(ConvFeedForward, act_layer=act_layer),
        norm_layer=norm_layer,
        proj_drop_rate=proj_drop_rate,
        drop_path_rate=variant.drop_path if drop_path_rate is None else drop_path_rate,
        output_stride=output_stride,
    )
    head = {"num_classes": num_classes, "in_chans": in_chans, "global_pool": global_pool, "drop_rate": drop_rate}
    return NaLaFormer(stages, variant.projection, **head, act_layer=act_layer)


def _mechanisms(attention: str | None, stage_attention: tuple[str, ...] | None, stages: int) -> tuple[str, ...]:
    if attention is not None and stage_attention is not None:
        raise UserError(
            f"attention={attention!r} names one mechanism for all stages and stage_attention={tuple(stage_attention)} "
            "one for each: give only one of them"
        )
    mechanisms = (attention,) * stages if attention is not None else tuple(stage_attention or RELEASED_ATTENTION)
    if len(mechanisms) != stages:
        raise UserError(f"stage_attention needs {stages} names, got {len(mechanisms)}: {', '.join(mechanisms)}")
    return mechanisms


def _stages(
    variant: Variant,
    mixers: list[partial[GatedAttention]],
    feed_forward: partial[ConvFeedForward],
    *,
    norm_layer: Callable[[int], nn.Module] | None,
    proj_drop_rate: float,
    drop_path_rate: float,
    output_stride: int,
) -> list[Stage]:
    if output_stride not in OUTPUT_STRIDES:
        raise UserError(f"output_stride must be one of {', '.join(map(str, OUTPUT_STRIDES))}, got {output_stride}")
    next_dims = [after for _, after in pairwise(variant.dims)] + [None]
    last_block = max(1, sum(variant.depths) - 1)
    stages, done, reduction, dilation = [], 0, 4, 1
    for index, (dim, heads, depth) in enumerate(zip(variant.dims, variant.heads, variant.depths, strict=True)):
        shared: dict[str, Any] = {"norm_layer": norm_layer, "dilation": dilation}
        blocks = [
            Block(
                dim,
                mixers[index](dim, heads, proj_drop=proj_drop_rate, **shared),
                feed_forward(dim, int(dim * variant.mlp_ratios[index]), drop=proj_drop_rate, dilation=dilation),
                layer_scale=variant.layer_scale[index],
                drop_path=drop_path_rate * (done + block) / last_block,
                **shared,
            )
            for block in range(depth)
        ]
        done += depth
        stride = 2 if reduction < output_stride else 1
        after = next_dims[index]
        down = nn.Identity() if after is None else Downsample(dim, after, stride=stride, dilation=dilation)
        own = {"dim": dim, "head_size": dim // heads, "reduction": reduction, "dilation": dilation}
        stages.append(Stage(blocks, downsample=down, **own))
        reduction, dilation = reduction * stride, dilation * 2 // stride
    return stages


default_cfgs = generate_default_cfgs(
    {
        f"nalaformer_{size}": {
            "num_classes": 1000,
            "input_size": (3, 224, 224),
            "pool_size": (7, 7),
            "crop_pct": 0.9,
            "interpolation": "bicubic",
            "mean": IMAGENET_DEFAULT_MEAN,
            "std": IMAGENET_DEFAULT_STD,
            "first_conv": "patch_embed.proj.0",
            "classifier": "head",
        }
        for size in VARIANTS
    }
)
"""timm's description of each model; timm reads this very name. No weights are published under a known address."""


_OPTIONS = (
    *list(signature(build).parameters)[1:],
    *("features_only", "out_indices", "feature_cls", "feature_cfg", "pretrained_cfg", "pretrained_cfg_overlay"),
    *("cache_dir", "device", "dtype"),
)
"""Of the entry functions: those of `build`, and timm's."""


def _create(
    name: str,
    pretrained: bool,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> nn.Module:
    """What timm calls: ``options`` are timm's own (features_only, pretrained_cfg, …) and those of `build`.

    Raises:
        TypeError: an option that neither has.
    """
    for option in options:
        if option not in _OPTIONS:
            raise TypeError(
                f"{name} got an unexpected keyword argument {option!r}{near(option, _OPTIONS)} "
                f"Options: {', '.join(_OPTIONS)}"
            )
    options["pretrained_cfg"] = options.get("pretrained_cfg") or default_cfgs[name].default.to_dict()
    # The stages are read by forward_intermediates: in a list of modules each would end in its downsampling.
    features = {"out_indices": (0, 1, 2, 3), "feature_cls": "getter"} | options.pop("feature_cfg", {})
    with torch.device(device) if device is not None else nullcontext():
        model: nn.Module = build_model_with_cfg(
            partial(build, VARIANTS[name.removeprefix("nalaformer_")]),
            name,
            pretrained,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg=features,
            **options,
        )
    if isinstance(model, FeatureGetterNet):
        model.register_load_state_dict_pre_hook(accept_whole_model)
    return model if dtype is None else model.to(dtype)


def nalaformer_nano(pretrained: bool = False, **options: Any) -> nn.Module:
    """About half a million parameters, for tests and for small real data; ``options`` as in `build` and timm."""
    return _create("nalaformer_nano", pretrained, **options)


def nalaformer_xt(pretrained: bool = False, **options: Any) -> nn.Module:
    """6.1 M parameters, 0.64 GMACs at 224; ``options`` as in `build` and timm."""
    return _create("nalaformer_xt", pretrained, **options)


def nalaformer_t(pretrained: bool = False, **options: Any) -> nn.Module:
    """15.9 M parameters, 2.9 GMACs at 224; ``options`` as in `build` and timm."""
    return _create("nalaformer_t", pretrained, **options)


def nalaformer_s(pretrained: bool = False, **options: Any) -> nn.Module:
    """25.7 M parameters, 5.0 GMACs at 224; ``options`` as in `build` and timm."""
    return _create("nalaformer_s", pretrained, **options)


def nalaformer_b(pretrained: bool = False, **options: Any) -> nn.Module:
    """52.0 M parameters, 11.7 GMACs at 224; ``options`` as in `build` and timm."""
    return _create("nalaformer_b", pretrained, **options)


def nalaformer_l(pretrained: bool = False, **options: Any) -> nn.Module:
    """95.4 M parameters, 17.7 GMACs at 224; ``options`` as in `build` and timm."""
    return _create("nalaformer_l", pretrained, **options)


ENTRIES = (nalaformer_nano, nalaformer_xt, nalaformer_t, nalaformer_s, nalaformer_b, nalaformer_l)
