"""The recurrent state of one layer, in the place of Hugging Face's keys and values.

Shapes: B batch (beams included), H heads, F features, E value size.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from nala_platform.attention.plain import State
from nala_platform.errors import UserError


class StateLayer(CacheLayerMixin):
    """Sums over all keys so far, float32, whatever their number; ``length`` counts the tokens, padding included."""

    is_sliding = False
    is_croppable = False
    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.state: State | None = None
        self.length = 0

    def store(self, state: State, tokens: int) -> None:
        """Replace the state by the one after ``tokens`` more tokens."""
        self.state, self.length, self.is_initialized = state, self.length + tokens, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the first state comes from the first tokens."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Refused: this layer holds no keys and values."""
        raise UserError("a recurrent state has no keys and values to update: start a new cache for softmax")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that a mask covers, and the first one's place."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens seen."""
        return self.length

    def get_max_length(self) -> int:
        """-1: no limit."""
        return -1

    def offload(self) -> None:
        """Nothing: the state is small and stays where it is."""

    def prefetch(self) -> None:
        """Nothing: the state never left."""

    def reset(self) -> None:
        """Forget all tokens."""
        self.state, self.length, self.is_initialized = None, 0, False

    def crop(self, tokens_to_remove: int) -> None:
        """Refused unless nothing is to be removed: sums cannot be taken back."""
        if tokens_to_remove:
            raise UserError("a recurrent state cannot forget its last tokens: assisted generation needs softmax")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Beam b continues what beam ``beam_idx[b]`` has seen."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows ``indices``, in that order."""
        if self.state is not None:
            self.state = State(*(part.index_select(0, indices.to(part.device)) for part in self.state))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row ``repeats`` times."""
        if self.state is not None:
            self.state = State(*(torch.repeat_interleave(part, repeats, dim=0) for part in self.state))


def state_layer(cache: Cache, index: int) -> StateLayer:
    """Layer ``index`` of ``cache``; an empty one for keys and values, as ``generate`` makes them, gives its place.

    Raises:
        UserError: the cache is static, quantized or offloaded, or holds another model's keys and values.
    """
    layers: Any = cache.layers
    while len(layers) <= index:
        layers.append(StateLayer())
    layer = layers[index]
    if isinstance(layer, StateLayer):
        return layer
    _check_growing(layer)
    if layer.get_seq_length() > 0:
        raise UserError("this cache holds keys and values of another model: start a new one for a recurrent state")
    layers[index] = fresh = StateLayer()
    return fresh


def key_value_layer(cache: Cache, index: int) -> None:
    """Check that layer ``index`` of ``cache`` takes keys and values.

    Raises:
        UserError: the cache is static, quantized or offloaded, or holds a recurrent state.
    """
    if index < len(cache.layers):
        layer: Any = cache.layers[index]
        if isinstance(layer, StateLayer):
            raise UserError("this cache holds a recurrent state of another model: start a new one for softmax")
        _check_growing(layer)


def _check_growing(layer: Any) -> None:
    if type(layer) is not DynamicLayer:
        raise UserError(
            f"a cache with a {type(layer).__name__} does not fit this model: the recurrent state of linear attention "
            "has a fixed size already, and keys and values of softmax are kept in a DynamicCache; leave "
            "cache_implementation out"
        )
