"""What every mechanism checks before it computes: shapes and Python numbers, never values in a tensor.

Reading a tensor's values would break ``torch.compile(fullgraph=True)`` and ``torch.export``, and stall a GPU.

Shapes: B batch, H heads, N queries, M keys, D head size, E value size.
"""

import math

import torch
from torch import Tensor

from nala_platform.attention.feature_map import DIRECTIONS, GATES
from nala_platform.attention.precision import widest
from nala_platform.attention.signature import AlphaRange, Options, Rope
from nala_platform.attention.tracing import is_jit_tracing, untraced
from nala_platform.errors import UserError, look_up


def check(query: Tensor, key: Tensor, value: Tensor, options: Options) -> None:
    """Raise UserError unless the arguments of ``signature.Attention`` fit together."""
    if not is_jit_tracing():
        return _check(query, key, value, options)
    with untraced():
        return _check(query, key, value, options)


def validate_options(
    *,
    heads: int,
    alpha_range: AlphaRange = (1.5, 4.5),
    alpha_gate: str = "tanh",
    key_power: float = 3.0,
    direction: str = "split",
    eps: float = 1e-6,
) -> None:
    """Raise UserError unless the options of ``nala_attention`` are known names and numbers in range.

    Args:
        heads: H, the entries of an ``alpha_range`` of tensors.
        alpha_range, alpha_gate, key_power, direction, eps: as in ``nala_attention``.
    """
    look_up(GATES, alpha_gate, option="alpha_gate")
    look_up(DIRECTIONS, direction, option="direction")
    _check_alpha_range(alpha_range, heads=heads)
    _check_positive(key_power, option="key_power")
    _check_positive(eps, option="eps")


def _check(query: Tensor, key: Tensor, value: Tensor, options: Options) -> None:
    _check_shapes(query, key, value)
    validate_options(
        heads=query.shape[1],
        alpha_range=options.alpha_range,
        alpha_gate=options.alpha_gate,
        key_power=options.key_power,
        direction=options.direction,
        eps=options.eps,
    )
    if options.is_causal and query.shape[2] != key.shape[2]:
        raise UserError(
            f"is_causal=True needs as many keys as queries, got N={query.shape[2]} queries and M={key.shape[2]} keys; "
            "to continue after earlier keys use nala_step"
        )
    if options.rope is not None:
        _check_rope(options.rope, query, key)
    if options.key_padding_mask is not None:
        _check_mask(options.key_padding_mask, key)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if not query.ndim == key.ndim == value.ndim == 4:
        raise UserError(f"query, key and value must be (batch, heads, tokens, size), got {shapes}")
    if not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        raise UserError(f"query, key and value must agree in batch and heads, got {shapes}")
    if query.shape[3] != key.shape[3]:
        raise UserError(f"query and key must have the same head size, got {shapes}")
    if key.shape[2] != value.shape[2]:
        raise UserError(f"key and value must have the same number of tokens, got {shapes}")
    if query.shape[2] == 0 or key.shape[2] == 0:
        raise UserError(f"at least one query and one key are needed, got {shapes}")
    if query.shape[1] == 0 or query.shape[3] == 0:
        raise UserError(f"at least one head of size 1 is needed, got {shapes}")
    if not (query.is_floating_point() and key.is_floating_point() and value.is_floating_point()):
        raise UserError(f"query, key and value must be floating point, got {_dtypes(query, key, value)}")
    if not widest(query) == widest(key) == widest(value):
        raise UserError(f"float64 and narrower query, key and value cannot be mixed, got {_dtypes(query, key, value)}")


def _dtypes(*tensors: Tensor) -> str:
    return ", ".join(str(tensor.dtype) for tensor in tensors)


def _check_alpha_range(alpha_range: AlphaRange, *, heads: int) -> None:
    if len(alpha_range) != 2:
        raise UserError(f"alpha_range must be (low, high), got {len(alpha_range)} entries")
    low, high = alpha_range
    for name, bound in (("low", low), ("high", high)):
        if isinstance(bound, Tensor):
            if bound.shape != (heads,):
                raise UserError(
                    f"alpha_range {name} must be a float or a tensor with one entry for each of the H={heads} heads, "
                    f"got shape {tuple(bound.shape)}"
                )
        else:
            _check_positive(bound, option=f"alpha_range {name}")
    if not isinstance(low, Tensor) and not isinstance(high, Tensor) and not low < high:
        raise UserError(f"alpha_range must be (low, high) with low < high, got ({low}, {high})")


def _check_positive(number: float, *, option: str) -> None:
    if not 0 < number < math.inf:
        raise UserError(f"{option} must be a finite number above 0, got {number}")


def _check_rope(rope: Rope, query: Tensor, key: Tensor) -> None:
    tokens, size = query.shape[2:]
    if size % 2:
        raise UserError(f"rope rotates pairs and needs an even head size, got D={size}")
    if tokens != key.shape[2]:
        raise UserError(
            f"rope is one pair of tables for queries and keys and needs as many keys as queries, "
            f"got N={tokens} queries and M={key.shape[2]} keys"
        )
    for name, table in zip(("cos", "sin"), rope, strict=True):
        if table.shape != (tokens, size):
            raise UserError(f"rope {name} must have shape (N, D) = ({tokens}, {size}), got {tuple(table.shape)}")


def _check_mask(key_padding_mask: Tensor, key: Tensor) -> None:
    if key_padding_mask.dtype != torch.bool:
        raise UserError(f"key_padding_mask must be bool with True = ignore, got {key_padding_mask.dtype}")
    expected = (key.shape[0], key.shape[2])
    if key_padding_mask.shape != expected:
        raise UserError(
            f"key_padding_mask must have shape (B, M) = {tuple(expected)}, got {tuple(key_padding_mask.shape)}"
        )
