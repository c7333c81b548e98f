"""The NaLaFormer vision pyramid (arXiv 2506.21137).

Shapes: B batch, C channels, Y rows, X columns, P projected channels, K classes.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from timm.layers.adaptive_avgmax_pool import SelectAdaptivePool2d
from timm.layers.weight_init import trunc_normal_
from timm.models import checkpoint
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from nala_platform.errors import UserError
from nala_platform.models.checkpoint import accept_released_weights
from nala_platform.nn.block import Block
from nala_platform.nn.memory_format import channels_last
from nala_platform.nn.rope import rotary_tables


class Stem(nn.Module):
    """Four 3x3 convolutions of strides 2, 1, 1, 2, each with BN, GELU between them: (B, 3, Y, X) to stride 4.

    Args:
        in_chans: channels of the image.
        dim: channels of the output.
        act_layer: makes the activations.
    """

    def __init__(self, in_chans: int, dim: int, *, act_layer: Callable[[], nn.Module] = nn.GELU) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        half = dim // 2
        for before, after, stride in ((in_chans, half, 2), (half, half, 1), (half, half, 1), (half, dim, 2)):
            layers += [nn.Conv2d(before, after, 3, stride, padding=1), nn.BatchNorm2d(after), act_layer()]
        self.proj = nn.Sequential(*layers[:-1])

    def forward(self, image_BCYX: Tensor) -> Tensor:
        """See the class."""
        return self.proj(image_BCYX)


class Downsample(nn.Module):
    """Halve rows and columns (rounded up): a 3x3 convolution of stride 2, then BN.

    Args:
        dim: channels.
        next_dim: channels of the output.
        stride: 1 keeps rows and columns.
        dilation: of the convolution.
    """

    def __init__(self, dim: int, next_dim: int, *, stride: int = 2, dilation: int = 1) -> None:
        super().__init__()
        self.reduction = nn.Conv2d(dim, next_dim, 3, stride, padding=dilation, dilation=dilation)
        self.norm = nn.BatchNorm2d(next_dim)

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """See the class."""
        return self.norm(self.reduction(x_BCYX))


class Stage(nn.Module):
    """The blocks of one resolution, which share one pair of rotary tables.

    ``forward`` ends before the downsampling, because that is the feature that dense tasks read.

    Args:
        blocks: at least one, all of ``dim`` channels.
        dim: channels.
        head_size: D of the rotary tables.
        downsample: leads to the next stage; Identity in the last.
        reduction: pixels of the image for a row or column.
        dilation: of the blocks; tokens at this distance are neighbours.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        dim: int,
        head_size: int,
        downsample: nn.Module,
        reduction: int,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.head_size = head_size
        self.reduction, self.dilation = reduction, dilation
        self.grad_checkpointing = False
        self.blocks = nn.ModuleList(blocks)
        self.downsample = downsample

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """(B, C, Y, X) -> (B, C, Y, X)."""
        height, width = x_BCYX.shape[-2:]
        rope = rotary_tables(height, width, self.head_size, device=x_BCYX.device, dilation=self.dilation)
        for block in self.blocks:
            x_BCYX = checkpoint(block, x_BCYX, rope) if self.grad_checkpointing else block(x_BCYX, rope)
        return x_BCYX


class NaLaFormer(nn.Module):
    """Stem, stages at strides 4, 8, 16, 32, and the head ``linear P, BN, SiLU, pool, linear K``; timm's whole contract.

    Any input size works, down to one pixel; a side is halved by rounding up. Parameter names are those of the released
    NaLaFormer, so that its checkpoints load as they are (see `nala_platform.models.checkpoint`).

    Args:
        stages: the four stages, in order, each ending in the channels of the next.
        projection: P, the width that is pooled; ``head_hidden_size`` in timm's words.
        num_classes: K; 0 gives the pooled features.
        in_chans: channels of the image.
        global_pool: timm's pooling name; "" gives a map of logits.
        drop_rate: dropout before the last layer.
        act_layer: makes the stem's activations.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        projection: int,
        *,
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        act_layer: Callable[[], nn.Module] = nn.GELU,
    ) -> None:
        super().__init__()
        self.in_chans = in_chans
        self.output_fmt = "NCHW"
        self.num_features = stages[-1].dim
        # Named by its last block: to torch.fx the downsampling, which is not in a stage's output, is in the stage.
        self.feature_info = [
            {
                "num_chs": stage.dim,
                "reduction": stage.reduction,
                "module": f"layers.{index}.blocks.{len(stage.blocks) - 1}",
            }
            for index, stage in enumerate(stages)
        ]
        self.patch_embed = Stem(in_chans, stages[0].dim, act_layer=act_layer)
        self.layers = nn.ModuleList(stages)
        self.proj: nn.Module = nn.Linear(self.num_features, projection)
        self.norm: nn.Module = nn.BatchNorm2d(projection)
        self.act: nn.Module = nn.SiLU()
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)
        self.apply(_initialise)
        self.register_load_state_dict_pre_hook(accept_released_weights)

    def no_weight_decay(self) -> set[str]:
        """Names of LayerScale's gammas and of learned exponents: scales, though some have four axes."""
        scale = re.compile(r"\.(gamma_[12]|alpha\.(low|high))$")
        return {name for name, _ in self.named_parameters() if scale.search(name)}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """timm's grouping for layer-wise learning rates: stem, then stages (coarse) or blocks; the rest is the head."""
        if coarse:
            return {"stem": r"^patch_embed", "blocks": r"^layers\.(\d+)"}
        # 99999 is timm's mark for "with the group before": a downsampling goes with the last block of its stage.
        blocks = [(r"^layers\.(\d+)\.blocks\.(\d+)", None), (r"^layers\.(\d+)\.downsample", (99999,))]
        return {"stem": r"^patch_embed", "blocks": blocks}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block in the backward pass instead of keeping what it computed."""
        for stage in self._stages():
            stage.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        """The last layer: a 1x1 convolution, or Identity without classes."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new last layer for ``num_classes`` (0: none), and another pooling unless ``global_pool`` is None."""
        if global_pool is not None:
            self.global_pool = SelectAdaptivePool2d(pool_type=global_pool).train(self.training)
        width = self.proj.out_features if isinstance(self.proj, nn.Linear) else self.num_features
        self.num_classes = num_classes
        self.head_hidden_size: int = width * self.global_pool.feat_mult()
        self.head: nn.Module = nn.Identity()
        if num_classes > 0:
            like = self.patch_embed.proj[0].weight
            self.head = nn.Conv2d(self.head_hidden_size, num_classes, 1, device=like.device, dtype=like.dtype)
            _initialise(self.head)
        self.head.train(self.training)

    def forward_features(self, image_BCYX: Tensor) -> Tensor:
        """The last stage's feature (B, C, Y/32, X/32)."""
        return self._run(image_BCYX, set(), len(self.layers) - 1)[0]

    def forward_head(self, x_BCYX: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits (B, K) of a last-stage feature, or the pooled vector (B, P) before the last layer."""
        x_BPYX = self.act(self.norm(self.proj(x_BCYX.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)))
        pooled = self.head_drop(self.global_pool(x_BPYX))
        logits = pooled if pre_logits else self.head(pooled)
        return logits if self.global_pool.is_identity() else logits.flatten(1)

    def forward(self, image_BCYX: Tensor) -> Tensor:
        """Logits (B, K) of images (B, in_chans, Y, X)."""
        return self.forward_head(self.forward_features(image_BCYX))

    def _stages(self) -> list[Stage]:
        return cast("list[Stage]", list(self.layers))

    def _run(self, image_BCYX: Tensor, take: set[int], last: int) -> tuple[Tensor, list[Tensor]]:
        """The output of stage ``last`` and of the stages in ``take``."""
        x_BCYX = self.patch_embed(channels_last(image_BCYX))
        taken = []
        for index in range(last + 1):
            stage = self._stages()[index]
            x_BCYX = stage(x_BCYX)
            if index in take:
                taken.append(x_BCYX)
            if index < last:
                x_BCYX = stage.downsample(x_BCYX)
        return x_BCYX, taken

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | tuple[int, ...] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """timm's door to the stages' outputs.

        Args:
            x: images (B, in_chans, Y, X).
            indices: the last n stages for an int, all for None, else these stages (negative counts from the end).
            norm: without effect, because no norm follows a stage here.
            stop_early: leave out the stages after the last one asked for.
            output_fmt: "NCHW" or "NHWC", of the intermediates.
            intermediates_only: return the list alone.

        Returns:
            The last stage's output (B, C, Y/32, X/32) and the list, in the order of the stages.
        """
        if output_fmt not in ("NCHW", "NHWC"):
            raise UserError(f"output_fmt must be NCHW or NHWC, got {output_fmt!r}")
        take, deepest = feature_take_indices(len(self.layers), indices if indices is None else _plain(indices))
        final, taken = self._run(x, set(take), deepest if stop_early else len(self.layers) - 1)
        if output_fmt == "NHWC":
            taken = [feature_BCYX.permute(0, 2, 3, 1) for feature_BCYX in taken]
        return taken if intermediates_only else (final, taken)

    def prune_intermediate_layers(
        self, indices: int | list[int] | tuple[int, ...] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the stages after the last one in ``indices`` and the head that would follow; returns plain indices.

        ``prune_norm`` is without effect (no norm follows a stage). The head stays only if all stages do and
        ``prune_head`` is False.
        """
        take, deepest = feature_take_indices(len(self.layers), _plain(indices))
        pruned = deepest < len(self.layers) - 1
        self.layers = self.layers[: deepest + 1]
        self._stages()[-1].downsample = nn.Identity()
        self.num_features = self._stages()[-1].dim
        if pruned or prune_head:
            self.proj, self.norm, self.act = nn.Identity(), nn.Identity(), nn.Identity()
            self.reset_classifier(0, "")
        return take


def _plain(indices: int | list[int] | tuple[int, ...]) -> int | list[int]:
    return indices if isinstance(indices, int) else list(indices)


def _initialise(module: nn.Module) -> None:
    """Linear layers and the classifier from a truncated normal of deviation 0.02; convolutions keep torch's own."""
    if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1)):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
