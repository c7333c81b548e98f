"""Causal language model: NaLa mixers and SwiGLU in pre-norm blocks, as a Hugging Face model.

Shapes: B batch, N new tokens, M tokens in all (M - N in the cache), C width, H heads, D head size, V vocabulary.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from nala_platform.attention import ATTENTION
from nala_platform.attention.precision import widen
from nala_platform.attention.recurrent import nala_step
from nala_platform.attention.rotary import rotate
from nala_platform.attention.signature import Rope
from nala_platform.errors import UserError
from nala_platform.models.language_cache import state_layer
from nala_platform.models.language_config import SIZES, NaLaConfig

__all__ = ["SIZES", "NaLaConfig", "NaLaForCausalLM", "causal_lm"]


def sequence_tables(tokens: int, head_size: int, *, base: float, device: torch.device) -> Rope:
    """``(cos_MD, sin_MD)``, float32: position m turns pair i by ``m * base ** (-2 i / D)``.

    Angles are taken in float64: in float32 those of the fast pairs lose a digit with every ten times the length.
    """
    frequency = base ** (-torch.arange(0, head_size, 2, device=device, dtype=torch.float64) / head_size)
    position = torch.arange(tokens, device=device, dtype=torch.float64)
    angle_MD = position[:, None] * frequency.repeat_interleave(2)
    return angle_MD.cos().float(), angle_MD.sin().float()


class Branch(nn.Linear):
    """The linear map whose result is added to the residual stream; only its first weights differ."""


class CausalMixer(nn.Module):
    """Causal attention, normalised and gated: ``out( RMSNorm(attention) * SiLU(gate) )``.

    Padding may stand at either side: the rotation depends on distances alone, and a hidden key enters nothing.
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

    def forward(self, x_BNC: Tensor, hidden_BM: Tensor | None, rope_MD: Rope, cache: Cache | None) -> Tensor:
        """(B, N, C) -> (B, N, C); ``hidden_BM`` is True at padding, ``rope_MD`` has a row for each of M tokens."""
        query, key, value, gate_BNC = self.qkvg(x_BNC).chunk(4, dim=-1)
        heads = tuple(x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (query, key, value))
        if cache is None:
            mix = partial(ATTENTION[self.attention], is_causal=True, rope=rope_MD, key_padding_mask=hidden_BM)
            mixed_BHND = mix(*heads, **self.options)
        elif self.attention == "nala":
            mixed_BHND = self._recurrent(heads, hidden_BM, rope_MD, cache)
        else:
            mixed_BHND = self._cached(heads, hidden_BM, rope_MD, cache)
        mixed_BNC = mixed_BHND.transpose(1, 2).flatten(2)
        return self.out(self.norm(mixed_BNC) * F.silu(gate_BNC))

    def _recurrent(self, heads: tuple[Tensor, ...], hidden_BM: Tensor | None, rope_MD: Rope, cache: Cache) -> Tensor:
        layer, new = state_layer(cache, self.index), heads[0].shape[2]
        rope_ND = (rope_MD[0][-new:], rope_MD[1][-new:])
        hidden_BN = None if hidden_BM is None else hidden_BM[:, -new:]
        query, key, value = heads
        out_BHND, state = nala_step(
            query, key, value, layer.state, rope=rope_ND, key_padding_mask=hidden_BN, **self.options
        )
        layer.store(state, new)
        return out_BHND

    def _cached(self, heads: tuple[Tensor, ...], hidden_BM: Tensor | None, rope_MD: Rope, cache: Cache) -> Tensor:
        query, new = heads[0], heads[0].shape[2]
        key, value = cache.update(heads[1], heads[2], self.index)
        attend: Any = partial(ATTENTION[self.attention], key_padding_mask=hidden_BM, **self.options)
        if new == 1 and self.attention == "softmax":
            # rotated here, since one pair of tables for queries and keys needs as many of both
            query = rotate(widen(query), (rope_MD[0][-1:], rope_MD[1][-1:])).to(value.dtype)
            return attend(query, rotate(widen(key), rope_MD).to(value.dtype), value)
        earlier = key.shape[2] - new
        every_BHMD = F.pad(query, (0, 0, earlier, 0))  # the causal form needs as many queries as keys
        return attend(every_BHMD, key, value, rope=rope_MD, is_causal=True)[:, :, earlier:]


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

    def forward(self, x_BNC: Tensor, hidden_BM: Tensor | None, rope_MD: Rope, cache: Cache | None = None) -> Tensor:
        """(B, N, C) -> (B, N, C); see `CausalMixer.forward`."""
        x_BNC = x_BNC + self.dropout(self.mixer(self.norm1(x_BNC), hidden_BM, rope_MD, cache))
        return x_BNC + self.dropout(self.feed_forward(self.norm2(x_BNC)))


class NaLaForCausalLM(PreTrainedModel, GenerationMixin):
    """Embedding, blocks, norm and head; with ``attention="nala"`` generation keeps a state of fixed size.

    ``forward(input_ids (B, N), attention_mask (B, M) 1 = token, cache)`` gives ``logits (B, N, V)`` and, with
    ``labels (B, N)`` (-100: ignored), the mean loss of predicting ``labels[:, 1:]``.
    """

    config_class = NaLaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LanguageBlock"]  # noqa: RUF012 - Hugging Face's form
    _tied_weights_keys = {"lm_head.weight": "embed.weight"}  # noqa: RUF012

    def __init__(self, config: NaLaConfig) -> None:
        config.check()
        super().__init__(config)
        self.vocab_size = config.vocab_size
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(LanguageBlock(config, index) for index in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            # variance kept; what is added to the residual stream is shrunk by the number of additions (GPT-2)
            terms = 2 * self.config.num_hidden_layers if isinstance(module, Branch) else 1
            init.normal_(module.weight, std=(module.in_features * terms) ** -0.5)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.RMSNorm):
            init.ones_(module.weight)

    def get_input_embeddings(self) -> nn.Module:
        """The embedding."""
        return self.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding."""
        self.embed = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """See the class. ``logits_to_keep``: of the last tokens alone; 0: of all."""
        if (input_ids is None) == (inputs_embeds is None):
            raise UserError("give either input_ids or inputs_embeds")
        x_BNC = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        hidden_states = self._encode(x_BNC, attention_mask, cache)
        logits = self.lm_head(hidden_states[:, -logits_to_keep:] if logits_to_keep else hidden_states)
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=self.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, cache=cache)

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Hugging Face's, for prompts padded at either side: new tokens stand last in each row.

        What it adds to stands at the end, so padding at the right is moved to the left first.
        """
        prompt, mask = kwargs.pop("input_ids", inputs), kwargs.get("attention_mask")
        if prompt is not None and mask is not None and prompt.shape == mask.shape:
            place_BN = _left_padded(mask)
            prompt, kwargs["attention_mask"] = prompt.gather(1, place_BN), mask.gather(1, place_BN)
        base: Any = super()  # its own type asks for attributes that this model has no use for
        return base.generate(prompt, *args, **kwargs)

    def _encode(self, x_BNC: Tensor, attention_mask: Tensor | None, cache: Cache | None) -> Tensor:
        total = x_BNC.shape[1] + (0 if cache is None else cache.get_seq_length())
        if attention_mask is not None and attention_mask.shape != (x_BNC.shape[0], total):
            raise UserError(
                f"attention_mask must be (batch, tokens with those in the cache) = {(x_BNC.shape[0], total)}, "
                f"got {tuple(attention_mask.shape)}"
            )
        hidden_BM = None if attention_mask is None else attention_mask == 0
        size = self.config.hidden_size // self.config.num_attention_heads
        rope_MD = sequence_tables(total, size, base=self.config.rope_theta, device=x_BNC.device)
        x_BNC = self.dropout(x_BNC)
        for block in self.blocks:
            x_BNC = block(x_BNC, hidden_BM, rope_MD, cache)
        return self.norm(x_BNC)


def _left_padded(mask_BN: Tensor) -> Tensor:
    """Where each row's tokens come from if its padding at the right is to stand at the left, (B, N)."""
    trailing_B1 = (mask_BN.flip(1).cumsum(1) == 0).sum(1, keepdim=True)
    place_N = torch.arange(mask_BN.shape[1], device=mask_BN.device)
    return (place_N - trailing_B1) % mask_BN.shape[1]


def causal_lm(
    size: str = "nano",
    vocab_size: int = 2048,
    attention: str = "nala",
    dropout: float = 0.0,
    alpha_range: tuple[float, float] = (1.5, 4.5),
    alpha_gate: str = "tanh",
    key_power: float = 3.0,
    direction: str = "split",
    tie_word_embeddings: bool = True,
) -> nn.Module:
    """A new `NaLaForCausalLM` of a named size; see `NaLaConfig`."""
    return NaLaForCausalLM(
        NaLaConfig.from_size(
            size,
            vocab_size=vocab_size,
            attention=attention,
            dropout=dropout,
            alpha_range=alpha_range,
            alpha_gate=alpha_gate,
            key_power=key_power,
            direction=direction,
            tie_word_embeddings=tie_word_embeddings,
        )
    )
