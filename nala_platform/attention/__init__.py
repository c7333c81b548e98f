"""Attention mechanisms: pure functions on tensors, torch alone.

To add a mechanism: a function with the signature ``Attention`` and its row in ``ATTENTION``.
"""

from nala_platform.attention.door import validate_options
from nala_platform.attention.linear import linear_attention, relu_attention
from nala_platform.attention.nala import nala_attention
from nala_platform.attention.plain import State
from nala_platform.attention.recurrent import linear_step, nala_step, relu_step
from nala_platform.attention.signature import AlphaRange, Attention, Rope
from nala_platform.attention.softmax import softmax_attention

ATTENTION: dict[str, Attention] = {
    "nala": nala_attention,
    "softmax": softmax_attention,
    "linear": linear_attention,
    "relu": relu_attention,
}

STEPS = {"nala": nala_step, "linear": linear_step, "relu": relu_step}
"""Mechanism -> its recurrent form. Softmax has none: it needs every key and value."""

__all__ = [
    "ATTENTION",
    "STEPS",
    "AlphaRange",
    "Attention",
    "Rope",
    "State",
    "linear_attention",
    "nala_attention",
    "nala_step",
    "relu_attention",
    "softmax_attention",
    "validate_options",
]
