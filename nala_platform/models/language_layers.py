"""The layers of the language model: causal mixer, SwiGLU, and the block of both.

Shapes: B batch, N new tokens, M tokens in all (M - N in the cache), C width, H heads, D head size.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from nala_platform.attention import ATTENTION, STEPS, State
from nala_platform.attention.precision import widen
from nala_platform.attention.rotary import rotate
from nala_platform.models.language_cache import key_value_layer, state_layer
from nala_platform.models.language_config import NaLaConfig
from nala_platform.models.language_positions import Layout

Heads = tuple[Tensor, Tensor, Tensor]
"""query, key, value, each (B, H, N, D)"""


class Branch(nn.Linear):
    """The linear map whose result is added to the residual stream; only its first weights differ."""


class CausalMixer(nn.Module):
    """Causal attention, normalised and gated: ``out( RMSNorm(attention) * SiLU(gate) )``.

    Padding may be on either side: the rotation depends only on distances, and a masked key is in no sum.
    """

    def __init__(self, config: NaLaConfig, index: int) -> None:
        super().__init__()
        self.index, self.heads, self.attention = index, config.num_attention_heads, config.attention
        self.options: dict[str, Any] = {
            "alpha_range": tuple(config.alpha_range),
            "alpha_gate": config.alpha_gate,
            "key_power": config.key_power,
            "direction": config.direction,
        }
        self.qkvg = nn.Linear(config.hidden_size, 4 * config.hidden_size, bias=False)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.out = Branch(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x_BNC: Tensor, layout: Layout, cache: Cache | None) -> Tensor:
        """(B, N, C) -> (B, N, C)."""
        batch, new, width = x_BNC.shape
        qkvg_BNGHD = self.qkvg(x_BNC).view(batch, new, 4, self.heads, width // self.heads)
        query, key, value, gate = qkvg_BNGHD.unbind(2)
        heads = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if cache is None:
            mixed_BHND = self._whole(heads, layout)
        elif self.attention in STEPS:
            mixed_BHND = self._recurrent(heads, layout, cache)
        else:
            mixed_BHND = self._cached(heads, layout, cache)
        mixed_BNC = mixed_BHND.transpose(1, 2).reshape(batch, new, width)
        return self.out(self.norm(mixed_BNC) * F.silu(gate.flatten(2)))

    def _whole(self, heads: Heads, layout: Layout) -> Tensor:
        attend: Any = partial(ATTENTION[self.attention], is_causal=True, **self.options)
        if layout.rope is not None:
            return attend(*heads, rope=layout.rope, key_padding_mask=layout.padding_BN)
        rows: list[list[Tensor]] = [[] for _ in range(heads[0].shape[0])]
        for piece in layout.pieces:
            parts = (x[piece.row : piece.row + 1, :, piece.start : piece.stop] for x in heads)
            rows[piece.row].append(attend(*parts, rope=piece.rope, key_padding_mask=layout.padding_of(piece)))
        return torch.cat([torch.cat(row, dim=2) for row in rows])

    def _recurrent(self, heads: Heads, layout: Layout, cache: Cache) -> Tensor:
        layer, new = state_layer(cache, self.index), heads[0].shape[2]
        step: Any = partial(STEPS[self.attention], **self.options)
        if layout.rope is not None:
            out_BHND, state = step(*heads, layer.state, rope=layout.rope, key_padding_mask=layout.padding_BN)
        else:  # rows at positions of their own
            outs, states = [], []
            for piece in layout.pieces:
                row = slice(piece.row, piece.row + 1)
                before = None if layer.state is None else State(*(part[row] for part in layer.state))
                parts = (x[row] for x in heads)
                out, after = step(*parts, before, rope=piece.rope, key_padding_mask=layout.padding_of(piece))
                outs.append(out)
                states.append(after)
            out_BHND, state = torch.cat(outs), State(*map(torch.cat, zip(*states, strict=True)))
        layer.store(state, new)
        return out_BHND

    def _cached(self, heads: Heads, layout: Layout, cache: Cache) -> Tensor:
        # Keys are rotated before they are cached, so that no later token rotates them again.
        key_value_layer(cache, self.index)
        cos_sin = layout.rope_of_rows()
        query, key = (rotate(widen(x), cos_sin).to(heads[2].dtype) for x in heads[:2])
        key, value = cache.update(key, heads[2], self.index)
        attend: Any = partial(ATTENTION[self.attention], key_padding_mask=layout.padding_BM, **self.options)
        new = query.shape[2]
        if new == 1:
            return attend(query, key, value)
        earlier = key.shape[2] - new
        every_BHMD = F.pad(query, (0, 0, earlier, 0))  # the causal form needs as many queries as keys
        return attend(every_BHMD, key, value, is_causal=True)[:, :, earlier:]


class SwiGLU(nn.Module):
    """``out( SiLU(gate) * up )`` (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, config: NaLaConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.out = Branch(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_BNC: Tensor) -> Tensor:
        """(B, N, C) -> (B, N, C)."""
        gate, up = self.gate_up(x_BNC).chunk(2, dim=-1)
        return self.out(F.silu(gate) * up)


class LanguageBlock(GradientCheckpointingLayer):
    """``x += mixer(norm(x)); x += swiglu(norm(x))``."""

    def __init__(self, config: NaLaConfig, index: int) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mixer = CausalMixer(config, index)
        self.norm2 = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.feed_forward = SwiGLU(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BNC: Tensor, layout: Layout, *, cache: Cache | None = None) -> Tensor:
        """(B, N, C) -> (B, N, C); gradient checkpointing sets ``cache`` to None by its name."""
        x_BNC = x_BNC + self.dropout(self.mixer(self.norm1(x_BNC), layout, cache))
        return x_BNC + self.dropout(self.feed_forward(self.norm2(x_BNC)))
