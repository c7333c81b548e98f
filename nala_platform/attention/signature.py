"""The one signature of every attention mechanism.

Shapes: B batch, H heads, N queries, M keys, D head size, E value size.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

AlphaRange = tuple[float | Tensor, float | Tensor]
"""(low, high) of the query exponent; each a float or a tensor (H,), learned per head."""

Rope = tuple[Tensor, Tensor]
"""(cos, sin), each (N, D), the two entries of an interleaved pair (x0, x1), (x2, x3), ... being equal."""


class Options(NamedTuple):
    """The options of ``Attention`` but ``backend``, as one mechanism hands them to its parts."""

    alpha_range: AlphaRange
    alpha_gate: str
    key_power: float
    direction: str
    rope: Rope | None
    is_causal: bool
    key_padding_mask: Tensor | None
    eps: float


class Attention(Protocol):
    """query (B, H, N, D), key (B, H, M, D), value (B, H, M, E) -> out (B, H, N, E) in value's dtype.

    The options mean the same in every mechanism; a mechanism's docstring names those that act on it. All are checked in
    every mechanism, so that a recipe with a wrong value stops whichever mechanism it names.
    """

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        alpha_range: AlphaRange = (1.5, 4.5),
        alpha_gate: str = "tanh",
        key_power: float = 3.0,
        direction: str = "split",
        rope: Rope | None = None,
        is_causal: bool = False,
        key_padding_mask: Tensor | None = None,
        eps: float = 1e-6,
        backend: str = "auto",
    ) -> Tensor: ...


class Form(Protocol):
    """phi_q (B, H, N, F), phi_k (B, H, M, F), value (B, H, M, E) -> out (B, H, N, E), float32 or float64."""

    def __call__(
        self,
        phi_q_BHNF: Tensor,
        phi_k_BHMF: Tensor,
        value_BHME: Tensor,
        *,
        rope: Rope | None,
        is_causal: bool,
        key_padding_mask: Tensor | None,
        eps: float,
    ) -> Tensor: ...


Backend = Callable[[Tensor, Tensor, Tensor, Options], Tensor]
"""One way to compute a mechanism: query, key, value and options, already checked -> out in any dtype."""
