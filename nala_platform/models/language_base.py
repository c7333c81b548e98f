"""The language model without a head: embedding, blocks and norm, and what all its forms share.

Shapes: B batch, N new tokens, M tokens in all (M - N in the cache), C width.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils import logging
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.output_capturing import capture_outputs

from nala_platform.attention import STEPS
from nala_platform.errors import UserError, near
from nala_platform.models.language_config import NaLaConfig
from nala_platform.models.language_layers import Branch, LanguageBlock
from nala_platform.models.language_positions import (
    Rotary,
    check_continued,
    checked_positions,
    document_starts,
    layout_of,
    padding,
)

_logger = logging.get_logger(__name__)

old_cache_name = deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
"""The library's own renaming of the argument."""

LOSS_KEYWORDS = ("num_items_in_batch", "ignore_index", "shift_labels")
_FLAGS = ("output_hidden_states", "output_attentions")


class NaLaPreTrainedModel(PreTrainedModel):
    """What the models share: first weights, and a saved folder that loads wherever nala_platform is installed."""

    config_class = NaLaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _is_stateful = True
    _supports_context_parallel = False
    _no_split_modules = ["LanguageBlock"]  # noqa: RUF012 - Hugging Face's form
    _can_record_outputs = {"hidden_states": LanguageBlock}  # noqa: RUF012

    def __init__(self, config: NaLaConfig, *inputs: Any, **kwargs: Any) -> None:
        config.check()
        super().__init__(config, *inputs, **kwargs)
        # a recurrent state cannot go back to fewer tokens, as assisted generation wants; keys and values can
        self._is_stateful = config.attention in STEPS

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            # variance kept; what is added to the residual stream is shrunk by the number of additions (GPT-2)
            terms = 2 * self.config.num_hidden_layers if isinstance(module, Branch) else 1
            init.normal_(module.weight, std=(module.in_features * terms) ** -0.5)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.RMSNorm):
            init.ones_(module.weight)

    def get_input_embeddings(self) -> nn.Module:
        """The embedding."""
        base: Any = self.base_model
        return base.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding."""
        base: Any = self.base_model
        base.embed = value

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Nothing: these classes come from the installed package, and every saved folder says so."""


class NaLaModel(NaLaPreTrainedModel):
    """Embedding, blocks and norm; with ``attention`` other than softmax generation keeps a state of fixed size.

    Args:
        config: the shape.
        is_part: ``post_init`` is called by the model that this one is a part of.
    """

    def __init__(self, config: NaLaConfig, *, is_part: bool = False) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(LanguageBlock(config, index) for index in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.gradient_checkpointing = False
        if not is_part:
            self.post_init()

    @old_cache_name
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Last hidden states (B, N, C), normalised.

        Args:
            input_ids: tokens (B, N); or ``inputs_embeds``.
            attention_mask: (B, M), 0 at padding.
            position_ids: (B, N) or (1, N). Where they restart, a new document begins, which sees nothing of the one
                before it; left out: the tokens follow those in the cache.
            cache: what an earlier call returned.
            inputs_embeds: (B, N, C) in the place of the embedded tokens.
            use_cache: return a cache; left out: ``config.use_cache``, and none in training.
            kwargs: ``output_hidden_states``, ``return_dict``.

        Raises:
            TypeError: an unknown keyword.
            UserError: arguments that do not fit together, or a cache of another kind.
        """
        _refuse_unknown(kwargs, self)
        if (input_ids is None) == (inputs_embeds is None):
            raise UserError("give either input_ids or inputs_embeds")
        x_BNC = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        batch, new = x_BNC.shape[:2]
        seen = 0 if cache is None else cache.get_seq_length()
        padding_BM = padding(attention_mask, batch=batch, total=seen + new)
        position_BN = starts_BN = None
        if position_ids is not None:
            position_BN = checked_positions(position_ids, batch=batch, new=new)
            if seen:
                check_continued(position_BN, padding_BM, seen=seen)
            starts_BN = document_starts(position_BN, None if padding_BM is None else padding_BM[:, seen:])
            starts_BN = starts_BN if starts_BN.any() else None
        cache = self._cache(cache, use_cache, packed=starts_BN is not None)
        size = self.config.hidden_size // self.config.num_attention_heads
        rotary = Rotary(new, size, self.config.rope_theta, x_BNC.device, is_kept=cache is not None)
        layout = layout_of(position_BN, starts_BN, padding_BM, seen=seen, rotary=rotary)
        x_BNC = self.dropout(x_BNC)
        for block in self.blocks:
            x_BNC = block(x_BNC, layout, cache=cache)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x_BNC), cache=cache)

    def _cache(self, cache: Cache | None, use_cache: bool | None, *, packed: bool) -> Cache | None:
        if packed and (cache is not None or use_cache):
            raise UserError("position_ids that restart (packed documents) cannot be used with a cache: use_cache=False")
        wanted = self.config.use_cache and not self.training and not packed if use_cache is None else use_cache
        if (wanted or cache is not None) and self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            _logger.warning_once("gradient checkpointing keeps no cache: use_cache=False is taken")
            return None
        return DynamicCache() if wanted and cache is None else cache


def _refuse_unknown(kwargs: dict[str, Any], model: PreTrainedModel) -> None:
    for name in kwargs:
        if name not in _FLAGS and name not in LOSS_KEYWORDS:
            known = ("input_ids", "attention_mask", "position_ids", "cache", "inputs_embeds", "use_cache", *_FLAGS)
            raise TypeError(f"forward() got an unexpected keyword argument {name!r}{near(name, known)}")
    if kwargs.get("output_attentions", model.config.output_attentions):
        raise UserError("output_attentions=True: this model never computes a matrix of attention weights; leave it out")
