"""The O(N) form of linear attention in ordinary autograd, every intermediate materialised: the yardstick for speed.

Shapes: B batch, H heads, N queries, M keys, F features, E value size; in the causal form T chunks of C tokens, N = M.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nala_platform.attention.precision import widen
from nala_platform.attention.rotary import rotate
from nala_platform.attention.signature import Rope

CHUNK = 64
"""Tokens a causal chunk: about the head size, where the quadratic part in a chunk and the states cost alike."""


class State(NamedTuple):
    """All that the keys seen so far leave behind: sums over them, float32 (float64 for float64 input)."""

    key_value_BHFE: Tensor
    """sum_j (R_j phi_k_j) v_j^T"""
    key_BHF: Tensor
    """sum_j phi_k_j"""
    count_B: Tensor
    """The number of keys, masked ones left out."""


def linear_form(
    phi_q_BHNF: Tensor,
    phi_k_BHMF: Tensor,
    value_BHME: Tensor,
    *,
    rope: Rope | None,
    is_causal: bool,
    key_padding_mask: Tensor | None,
    eps: float,
) -> Tensor:
    """The same values and gradients as ``reference.quadratic_form``, in O(N) time and memory."""
    seen_BM, phi_k_BHMF = counted(phi_k_BHMF, key_padding_mask)
    value_BHME = widen(value_BHME)
    rotated_q_BHNF, rotated_k_BHMF = rotate(phi_q_BHNF, rope), rotate(phi_k_BHMF, rope)
    if is_causal:
        return causal(rotated_q_BHNF, phi_q_BHNF, rotated_k_BHMF, phi_k_BHMF, value_BHME, seen_BM, eps=eps)
    return read(rotated_q_BHNF, phi_q_BHNF, gather(rotated_k_BHMF, phi_k_BHMF, value_BHME, seen_BM), eps=eps)


def counted(phi_k_BHMF: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """1 at a seen key and 0 at a masked one, (B, M), and the features with 0 at a masked key."""
    seen_BM = phi_k_BHMF.new_ones((phi_k_BHMF.shape[0], phi_k_BHMF.shape[2]))
    if key_padding_mask is None:
        return seen_BM, phi_k_BHMF
    return seen_BM.masked_fill(key_padding_mask, 0.0), phi_k_BHMF.masked_fill(key_padding_mask[:, None, :, None], 0.0)


def gather(rotated_k_BHMF: Tensor, phi_k_BHMF: Tensor, value_BHME: Tensor, seen_BM: Tensor) -> State:
    """The sums over all keys; ``seen_BM`` is 0 at a masked key, whose features must be 0."""
    return State(rotated_k_BHMF.transpose(-2, -1) @ value_BHME, phi_k_BHMF.sum(2), seen_BM.sum(1))


def read(rotated_q_BHNF: Tensor, phi_q_BHNF: Tensor, state: State, *, eps: float) -> Tensor:
    """What queries that see exactly the keys in ``state`` get, (B, H, N, E); 0 if there are none."""
    count_B11 = state.count_B.clamp_min(1)[:, None, None]
    numerator_BHNE = rotated_q_BHNF @ (state.key_value_BHFE / count_B11[..., None])
    denominator_BHN1 = phi_q_BHNF @ (state.key_BHF / count_B11)[..., None]
    return numerator_BHNE / (denominator_BHN1 + eps)


def causal(
    rotated_q_BHNF: Tensor,
    phi_q_BHNF: Tensor,
    rotated_k_BHNF: Tensor,
    phi_k_BHNF: Tensor,
    value_BHNE: Tensor,
    seen_BN: Tensor,
    *,
    eps: float,
    start: State | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """What query i gets from ``start`` and the keys j <= i, (B, H, N, E). The result does not depend on ``chunk``."""
    sums_BHNE = _causal_sums(rotated_q_BHNF, rotated_k_BHNF, value_BHNE, start=start, chunk=chunk)
    keys_BHNF, count_BN = phi_k_BHNF.cumsum(2), seen_BN.cumsum(1)
    if start is not None:
        keys_BHNF, count_BN = keys_BHNF + start.key_BHF[:, :, None], count_BN + start.count_B[:, None]
    count_B1N1 = count_BN.clamp_min(1)[:, None, :, None]
    denominator_BHN1 = (phi_q_BHNF * keys_BHNF).sum(-1, keepdim=True) / count_B1N1
    return sums_BHNE / count_B1N1 / (denominator_BHN1 + eps)


def _causal_sums(q_BHNF: Tensor, k_BHNF: Tensor, v_BHNE: Tensor, *, start: State | None, chunk: int) -> Tensor:
    """sum_{j <= i} (q_i . k_j) v_j, (B, H, N, E): the states before each chunk plus a lower triangle in it."""
    length = q_BHNF.shape[2]
    # An exported graph with a symbolic N may not depend on there being one chunk or several, nor on N being a multiple
    # of the chunk: there it always has two chunks or more, and unfold and pad, unlike view and slice, do not ask.
    chunks = length // chunk + 2 if torch.compiler.is_exporting() else (length + chunk - 1) // chunk
    padding = chunks * chunk - length
    q_BHTCF, k_BHTCF, v_BHTCE = (_in_chunks(F.pad(x, (0, 0, 0, padding)), chunk) for x in (q_BHNF, k_BHNF, v_BHNE))
    own_BHTFE = k_BHTCF.transpose(-2, -1) @ v_BHTCE
    # Shifted, not cumsum - own: after a chunk with large keys that difference would be all rounding.
    before_BHTFE = F.pad(own_BHTFE.cumsum(2), (0, 0, 0, 0, 1, -1))
    if start is not None:
        before_BHTFE = before_BHTFE + start.key_value_BHFE[:, :, None]
    within_BHTCC = (q_BHTCF @ k_BHTCF.transpose(-2, -1)).tril()
    sums_BHTCE = q_BHTCF @ before_BHTFE + within_BHTCC @ v_BHTCE
    return F.pad(sums_BHTCE.flatten(2, 3), (0, 0, 0, -padding))


def _in_chunks(x_BHNX: Tensor, chunk: int) -> Tensor:
    """(B, H, T, C, X)"""
    if torch.compiler.is_compiling():
        return x_BHNX.unfold(2, chunk, chunk).transpose(-2, -1)
    # ONNX has no unfold of a length that is not known, vmap no rule for its gradient
    return x_BHNX.unflatten(2, (-1, chunk))
