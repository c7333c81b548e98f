"""How results lie in memory.

Shapes: B batch, H heads, N tokens.
"""

from torch import Tensor


def empty_like(x_BHNX: Tensor, tokens: int) -> Tensor:
    """An empty tensor (B, H, tokens, X), tokens before heads in memory where x is the view of a projection."""
    batch, heads, _, size = x_BHNX.shape
    if x_BHNX.stride(1) < x_BHNX.stride(2):
        return x_BHNX.new_empty((batch, tokens, heads, size)).transpose(1, 2)
    return x_BHNX.new_empty((batch, heads, tokens, size))
