"""The recurrent form of causal linear attention: a state of fixed size in the place of the earlier keys and values.

Shapes: B batch, H heads, N new tokens, D head size, E value size, F = 2D features.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nala_platform.attention.door import check
from nala_platform.attention.feature_map import key_features, query_features
from nala_platform.attention.linear import elu_plus_one
from nala_platform.attention.masking import cleared
from nala_platform.attention.native.engine import NATIVE
from nala_platform.attention.native.form import is_at_hand
from nala_platform.attention.native.step import quick_step
from nala_platform.attention.plain import State, causal, counted, gather, read
from nala_platform.attention.precision import autocast_off, widen, widest
from nala_platform.attention.rotary import rotate
from nala_platform.attention.signature import AlphaRange, Options, Rope
from nala_platform.errors import UserError

_DEFAULTS: dict[str, Any] = {
    "alpha_range": (1.5, 4.5),
    "alpha_gate": "tanh",
    "key_power": 3.0,
    "direction": "split",
    "rope": None,
    "is_causal": True,
    "key_padding_mask": None,
    "eps": 1e-6,
}


def nala_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: State | None = None,
    *,
    alpha_range: AlphaRange = (1.5, 4.5),
    alpha_gate: str = "tanh",
    key_power: float = 3.0,
    direction: str = "split",
    rope: Rope | None = None,
    key_padding_mask: Tensor | None = None,
    eps: float = 1e-6,
) -> tuple[Tensor, State]:
    """Continue ``nala_attention(..., is_causal=True)`` by N >= 1 tokens: (out (B, H, N, E), state after them).

    ``state`` is what the last call returned; ``None`` starts a sequence. ``rope`` holds the rows of the tables at the
    new tokens' positions, (N, D); a key that ``key_padding_mask`` (B, N) hides enters no part of the state. All parts
    of the state have the batch first, so beams reorder it by ``State(*(part[beams] for part in state))``; the one
    passed in is left as it was. Raises UserError as ``nala_attention``, and for a state that does not fit.
    """
    options = Options(alpha_range, alpha_gate, key_power, direction, rope, True, key_padding_mask, eps)
    if state is not None and not torch.compiler.is_compiling() and not torch.is_grad_enabled():
        quick = quick_step(query, key, value, state, options)
        if quick is not None:
            return quick
    check(query, key, value, options)
    if state is not None:
        _check_state(state, query, value, features=2 * query.shape[3])
    if not _needs_operators(query, key, value, state, options) and is_at_hand(query, key, value, options):
        return NATIVE.step(query, key, value, state, options)
    key, value = cleared(key, value, key_padding_mask)
    with autocast_off(query):
        phi_q_BHNF = query_features(query, alpha_range=alpha_range, alpha_gate=alpha_gate, direction=direction)
        phi_k_BHNF = key_features(key, key_power=key_power, direction=direction)
        out_BHNE, after = _advance(phi_q_BHNF, phi_k_BHNF, widen(value), state, options)
    return out_BHNE.to(value.dtype), after


def linear_step(
    query: Tensor, key: Tensor, value: Tensor, state: State | None = None, **given: Any
) -> tuple[Tensor, State]:
    """Continue ``linear_attention(..., is_causal=True)``; see `nala_step`, whose options it takes. F = D."""
    return _step_through(elu_plus_one, query, key, value, state, given)


def relu_step(
    query: Tensor, key: Tensor, value: Tensor, state: State | None = None, **given: Any
) -> tuple[Tensor, State]:
    """Continue ``relu_attention(..., is_causal=True)``; see `nala_step`, whose options it takes. F = D."""
    return _step_through(F.relu, query, key, value, state, given)


def _step_through(
    phi: Callable[[Tensor], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: State | None,
    given: dict[str, Any],
) -> tuple[Tensor, State]:
    options = Options(**(_DEFAULTS | given))
    check(query, key, value, options)
    if state is not None:
        _check_state(state, query, value, features=query.shape[3])
    key, value = cleared(key, value, options.key_padding_mask)
    with autocast_off(query):
        out_BHNE, after = _advance(phi(widen(query)), phi(widen(key)), widen(value), state, options)
    return out_BHNE.to(value.dtype), after


def _advance(
    phi_q_BHNF: Tensor, phi_k_BHNF: Tensor, value_BHNE: Tensor, state: State | None, options: Options
) -> tuple[Tensor, State]:
    seen_BN, phi_k_BHNF = counted(phi_k_BHNF, options.key_padding_mask)
    rotated_q_BHNF, rotated_k_BHNF = rotate(phi_q_BHNF, options.rope), rotate(phi_k_BHNF, options.rope)
    new = gather(rotated_k_BHNF, phi_k_BHNF, value_BHNE, seen_BN)
    after = new if state is None else State(*(old + added for old, added in zip(state, new, strict=True)))
    if phi_q_BHNF.shape[2] == 1:
        return read(rotated_q_BHNF, phi_q_BHNF, after, eps=options.eps), after
    out_BHNE = causal(
        rotated_q_BHNF, phi_q_BHNF, rotated_k_BHNF, phi_k_BHNF, value_BHNE, seen_BN, eps=options.eps, start=state
    )
    return out_BHNE, after


def _needs_operators(query: Tensor, key: Tensor, value: Tensor, state: State | None, options: Options) -> bool:
    """Whether a graph is made of this: of torch.compile, or of autograd."""
    bounds = (bound for bound in options.alpha_range if isinstance(bound, Tensor))
    tensors = (query, key, value, *(state or ()), *(options.rope or ()), *bounds)
    wants_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return torch.compiler.is_compiling() or wants_gradient


def _check_state(state: State, query: Tensor, value: Tensor, *, features: int) -> None:
    batch, heads, _, _ = query.shape
    dtype = widest(query)
    shapes = (batch, heads, features, value.shape[3]), (batch, heads, features), (batch,)
    for name, part, shape in zip(State._fields, state, shapes, strict=True):
        if part.shape != shape or part.dtype != dtype:
            raise UserError(
                f"state {name} must be {dtype} {shape} for these queries, keys and values, "
                f"got {part.dtype} {tuple(part.shape)}"
            )
