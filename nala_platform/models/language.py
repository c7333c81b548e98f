"""Causal language model: NaLa mixers and SwiGLU in pre-norm blocks, as Hugging Face models.

Shapes: B batch, N new tokens, C width, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.modeling_layers import (
    GenericForQuestionAnswering,
    GenericForSequenceClassification,
    GenericForTokenClassification,
)
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils.generic import can_return_tuple

from nala_platform.models.language_base import LOSS_KEYWORDS, NaLaModel, NaLaPreTrainedModel, old_cache_name
from nala_platform.models.language_config import SIZES, NaLaConfig

__all__ = [
    "SIZES",
    "NaLaConfig",
    "NaLaForCausalLM",
    "NaLaForQuestionAnswering",
    "NaLaForSequenceClassification",
    "NaLaForTokenClassification",
    "NaLaModel",
    "NaLaPreTrainedModel",
    "causal_lm",
]


class NaLaForCausalLM(NaLaPreTrainedModel, GenerationMixin):
    """`NaLaModel` and a head that predicts the next token."""

    _tied_weights_keys = {"lm_head.weight": "model.embed.weight"}  # noqa: RUF012 - Hugging Face's form

    def __init__(self, config: NaLaConfig) -> None:
        super().__init__(config)
        self.model = NaLaModel(config, is_part=True)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.register_load_state_dict_pre_hook(_with_base_prefix)
        self.model.post_init()  # here, so that a seed draws the weights that it always has drawn
        self.post_init()

    @property
    def embed(self) -> nn.Module:
        """The embedding, where it was before the base model was a module of its own."""
        return self.model.embed

    @old_cache_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (B, N, V) and, with ``labels``, their loss. Other arguments are those of `NaLaModel.forward`.

        Args:
            labels: (B, N), -100: ignored; the loss is that of predicting ``labels[:, 1:]``, a mean, or the sum over
                ``num_items_in_batch``. ``shift_labels`` gives the targets as they stand.
            logits_to_keep: of this many last tokens only (0: of all), or a tensor of the places to keep.
        """
        outputs: Any = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None or kwargs.get("shift_labels") is not None:
            options = {name: kwargs[name] for name in LOSS_KEYWORDS if name in kwargs}
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **options)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, cache=outputs.cache, hidden_states=outputs.hidden_states
        )

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Hugging Face's, for prompts padded on either side: new tokens are the last ones of each row.

        They are added at the end, so padding on the right is moved to the left first.
        """
        prompt = kwargs.pop("input_ids", inputs)
        mask = kwargs.get("attention_mask")
        if mask is None and prompt is not None and kwargs.get("inputs_embeds") is None:
            mask = self._mask_by_pad_token(prompt, args, kwargs)
        if mask is not None and mask.ndim == 2 and bool((mask[:, -1:] == 0).any()):
            place_BN = _left_padded(mask)
            kwargs["attention_mask"] = mask.gather(1, place_BN)
            embeds = kwargs.get("inputs_embeds")
            if embeds is not None and embeds.shape[:2] == mask.shape:
                kwargs["inputs_embeds"] = embeds.gather(1, place_BN[..., None].expand_as(embeds))
            positions = kwargs.get("position_ids")
            if positions is not None and positions.shape == mask.shape:
                kwargs["position_ids"] = positions.gather(1, place_BN)
            if prompt is not None and prompt.shape == mask.shape:
                prompt = prompt.gather(1, place_BN)
        base: Any = super()  # its own type asks for attributes that this model has no use for
        return base.generate(prompt, *args, **kwargs)

    def _mask_by_pad_token(self, prompt: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """As ``generate`` itself infers it: padding is the pad token, unless that one also ends texts."""
        config = args[0] if args and args[0] is not None else kwargs.get("generation_config") or self.generation_config
        pad, ends = (kwargs.get(name, getattr(config, name, None)) for name in ("pad_token_id", "eos_token_id"))
        ends = ends if isinstance(ends, list | tuple) else [ends]
        if pad is None or pad in ends or not bool((prompt == pad).any()):
            return None
        return (prompt != pad).long()

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **_: Any) -> Tensor | None:
        """The mask as it is: no mechanism here takes a matrix of who sees whom."""
        return attention_mask

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> None:
        """None: tokens follow those in the cache, and only the distance between two tokens counts."""


class NaLaForSequenceClassification(GenericForSequenceClassification, NaLaPreTrainedModel):
    """`NaLaModel` and a linear classifier on each row's last token."""


class NaLaForTokenClassification(GenericForTokenClassification, NaLaPreTrainedModel):
    """`NaLaModel` and a linear classifier on each token."""


class NaLaForQuestionAnswering(GenericForQuestionAnswering, NaLaPreTrainedModel):
    """`NaLaModel` and scores for the first and the last token of an answer."""

    def get_input_embeddings(self) -> nn.Module:
        """The embedding; the generic head looks for it under another name."""
        return NaLaPreTrainedModel.get_input_embeddings(self)

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding."""
        NaLaPreTrainedModel.set_input_embeddings(self, value)


# Before the base model was a module of its own, the weights of `NaLaForCausalLM` had no prefix: ``embed.weight``,
# ``blocks.0. …``. Hugging Face folders keep these names, and state dicts with them load.
register_checkpoint_conversion_mapping(
    "NaLaForCausalLM", [WeightRenaming(r"^(embed|blocks|norm)\.", r"model.\1.")], overwrite=True
)


def _with_base_prefix(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    for name in [name for name in state_dict if name.startswith(prefix)]:
        rest = name.removeprefix(prefix)
        if rest.partition(".")[0] in ("embed", "blocks", "norm"):
            state_dict[f"{prefix}model.{rest}"] = state_dict.pop(name)


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
