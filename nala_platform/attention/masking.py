"""Which keys a query sees, and what the others may hold.

Shapes: B batch, H heads, N queries, M keys, D head size, E value size.
"""

import torch
from torch import Tensor

from nala_platform.attention.precision import widest


def cleared(key_BHMD: Tensor, value_BHME: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Key and value with 0 at masked keys: what stood there, NaN included, reaches no sum and no gradient."""
    if key_padding_mask is None:
        return key_BHMD, value_BHME
    hidden_B1M1 = key_padding_mask[:, None, :, None]
    return key_BHMD.masked_fill(hidden_B1M1, 0.0), value_BHME.masked_fill(hidden_B1M1, 0.0)


def keys_seen(query_BHND: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """How many keys up to its own each query sees, (B, N), in the dtype of sums; its rows may share memory."""
    if key_padding_mask is not None:
        return (~key_padding_mask).cumsum(1).to(widest(query_BHND))
    batch, _, tokens, _ = query_BHND.shape
    return torch.arange(1, tokens + 1, device=query_BHND.device, dtype=widest(query_BHND)).expand(batch, -1)


def visible(query_BHND: Tensor, key_BHMD: Tensor, *, is_causal: bool, key_padding_mask: Tensor | None) -> Tensor:
    """Which key each query sees, bool (B or 1, 1, N, M)."""
    sees_11NM = query_BHND.new_ones((1, 1, query_BHND.shape[2], key_BHMD.shape[2]), dtype=torch.bool)
    if is_causal:
        sees_11NM = sees_11NM.tril()
    return sees_11NM if key_padding_mask is None else sees_11NM & ~key_padding_mask[:, None, None, :]
