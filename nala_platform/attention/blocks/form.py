"""NaLa in blocks of tokens that stay in a cache, with the gradient in closed form: what autograd keeps is q, k, v.

The features, twice as wide as the head, are never whole: a block makes its own and drops them, in the backward pass
once more. Beside the inputs only the sums are kept, ``2D x E`` a head; in the causal form one set a block.
"""

from typing import NamedTuple

from torch import Tensor

from nala_platform.attention.blocks.call import AS_THEY_ARE, Kernels, cut_up
from nala_platform.attention.blocks.passes import backward, causal_backward, causal_forward, forward
from nala_platform.attention.gradient import differentiable
from nala_platform.attention.signature import Options


class Blocks(NamedTuple):
    """``gradient.Engine``: block after block with the given kernels."""

    backend: str
    kernels: Kernels

    def forward(self, query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, list[Tensor]]:
        """See there."""
        call = cut_up(query, value, options, self.kernels, both=False)
        return (causal_forward if options.is_causal else forward)(call, query, key, value)

    def backward(
        self, query: Tensor, key: Tensor, value: Tensor, grad: Tensor, kept: list[Tensor], options: Options
    ) -> tuple[Tensor | None, ...]:
        """See there."""
        call = cut_up(query, value, options, self.kernels, both=True)
        return (causal_backward if options.is_causal else backward)(call, query, key, value, grad, kept)


_CHUNKED = Blocks("chunked", AS_THEY_ARE)


def chunked_form(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    """``Backend``: see the module's text. Rotary tables get no gradient.

    Raises:
        UserError: a table of ``rope`` requires a gradient, or the call is traced by ``torch.compile``, ``torch.export``
            or a transform of ``torch.func``: there "plain" is the one.
    """
    return differentiable(query, key, value, options, _CHUNKED)
