"""The description of a NaLa language model, as Hugging Face stores it in ``config.json``."""

from pathlib import Path
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from nala_platform.attention import ATTENTION
from nala_platform.errors import UserError, look_up
from nala_platform.models.remote_code import AUTO_MAP, write_remote_code

# 340m: 337.9 M parameters with 32000 tied embeddings.
SIZES: dict[str, dict[str, Any]] = {
    "nano": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 344},
    "small": {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 1408},
    "340m": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 2432},
}


@strict
class NaLaConfig(PreTrainedConfig):
    """Shape and options of a `NaLaForCausalLM`.

    Args:
        vocab_size: rows of the embedding.
        hidden_size: width; ``num_attention_heads`` divides it into heads of an even size.
        num_hidden_layers: blocks.
        num_attention_heads: heads.
        intermediate_size: inner width of SwiGLU.
        attention: a name in ``ATTENTION``; softmax generates with a cache of keys and values, the others with a state.
        alpha_range, alpha_gate, key_power, direction: see `nala_platform.attention.nala_attention`.
        dropout: on the embedding and on what each sublayer adds, in [0, 1).
        rope_theta: the base of the rotary frequencies.
        rms_norm_eps: in every normalisation.
        tie_word_embeddings: the head is the embedding, transposed.
        use_cache: return a cache from a pass in evaluation mode.
    """

    model_type = "nala"
    attribute_map: ClassVar[dict[str, str]] = {"hidden_dropout": "dropout"}

    vocab_size: int = 32000
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    intermediate_size: int = 344
    attention: str = "nala"
    alpha_range: list[float] | tuple[float, ...] = (1.5, 4.5)
    alpha_gate: str = "tanh"
    key_power: int | float = 3.0
    direction: str = "split"
    dropout: int | float = 0.0
    rope_theta: int | float = 10000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 0

    @classmethod
    def from_size(cls, size: str, **overrides: Any) -> "NaLaConfig":
        """The configuration of a named size (`SIZES`), with what ``overrides`` changes.

        Examples:
            >>> NaLaConfig.from_size("nano", vocab_size=2048).hidden_size
            128
        """
        return cls(**(look_up(SIZES, size, option="size") | overrides))

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Save as Hugging Face does, with the file that ``trust_remote_code=True`` runs; models call this."""
        self.auto_map = dict(AUTO_MAP)
        saved = super().save_pretrained(save_directory, *args, **kwargs)
        write_remote_code(Path(save_directory))
        return saved

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Nothing: this class comes from the installed package."""

    def check(self) -> None:
        """Refuse what cannot be built, as a UserError; Hugging Face's own validation would wrap it into another."""
        look_up(ATTENTION, self.attention, option="attention")
        if self.hidden_size % (2 * self.num_attention_heads):
            raise UserError(
                f"hidden_size {self.hidden_size} must be a multiple of 2 * num_attention_heads = "
                f"{2 * self.num_attention_heads}: rotary embedding turns pairs within a head"
            )
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout must be in [0, 1), got {self.dropout}")
