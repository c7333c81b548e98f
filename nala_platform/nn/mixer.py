"""The gated attention of a vision block.

Shapes: B batch, Y rows, X columns, C = H * D channels, H heads, N = Y * X tokens, D head size.
"""

from collections.abc import Callable

from torch import Tensor, nn

from nala_platform.attention import ATTENTION, AlphaRange, Attention, Rope, validate_options
from nala_platform.errors import UserError, look_up
from nala_platform.nn.alpha import LearnedAlphaRange


class GatedAttention(nn.Module):
    """``out_proj( LN(attention(q, k, v) + lepe(v)) * silu(gate) )`` with ``[q k v gate] = qkvg(x)``.

    ``lepe`` is a 5x5 depthwise convolution, the LayerNorm has eps 1e-5, and the attention gets rotary tables: NaLa and
    its linear peers rotate features in their numerator, softmax rotates q and k before the scores. Input and output
    ``(B, Y, X, C)``. Parameter names are those of the released NaLaFormer.

    Args:
        dim: channels C.
        heads: H, a divisor of C.
        attention: a name in ``nala_platform.attention.ATTENTION``, or a function with that signature.
        alpha_range, alpha_gate, direction, key_power: as in ``nala_attention``; the other mechanisms check them, and
            they have no effect there.
        learn_alpha: ``alpha_range`` is the start of a `LearnedAlphaRange`, parameters ``alpha.low``, ``alpha.high``.
        norm_layer: makes the norm from C, over the last axis; None is the LayerNorm.
        proj_drop: probability of the dropout after ``out_proj``.
        dilation: of ``lepe``'s convolution, in tokens.

    Raises:
        UserError: an unknown name, heads that do not divide C, a head size not a multiple of 4, options that the
            mechanism refuses, or ``learn_alpha`` for a named mechanism other than NaLa.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        attention: str | Attention = "nala",
        *,
        alpha_range: tuple[float, float] = (1.5, 4.5),
        alpha_gate: str = "tanh",
        direction: str = "split",
        key_power: float = 3.0,
        learn_alpha: bool = False,
        norm_layer: Callable[[int], nn.Module] | None = None,
        proj_drop: float = 0.0,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        if dim % heads or dim // heads % 4:
            raise UserError(f"{dim} channels in {heads} heads: a head must have a multiple of 4 channels")
        if learn_alpha and isinstance(attention, str) and attention != "nala":
            raise UserError(f"learn_alpha needs attention 'nala', got {attention!r}, which has no exponent to learn")
        self.heads = heads
        self.attention = look_up(ATTENTION, attention, option="attention") if isinstance(attention, str) else attention
        low, high = alpha_range
        self.alpha_range = (low, high)
        self.alpha_gate, self.direction, self.key_power = alpha_gate, direction, key_power
        self.qkvg = nn.Linear(dim, 4 * dim)
        validate_options(
            heads=heads, alpha_range=alpha_range, alpha_gate=alpha_gate, direction=direction, key_power=key_power
        )
        self.lepe = nn.Conv2d(dim, dim, 5, padding=2 * dilation, dilation=dilation, groups=dim)
        self.out_proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.ln = nn.LayerNorm(dim) if norm_layer is None else norm_layer(dim)
        self.alpha = LearnedAlphaRange(heads, self.alpha_range) if learn_alpha else None

    def forward(self, x_BYXC: Tensor, rope: Rope) -> Tensor:
        """See the class; ``rope`` is ``(cos_ND, sin_ND)`` of `rotary_tables`."""
        size_BYXC = x_BYXC.shape
        # One split for all four: its backward is one concatenation, where views of views fill and add zeros.
        query_BYXC, key_BYXC, value_BYXC, gate_BYXC = self.qkvg(x_BYXC).chunk(4, dim=-1)
        near_BCYX = self.lepe(value_BYXC.permute(0, 3, 1, 2))
        query_BHND, key_BHND, value_BHND = (
            part_BYXC.reshape(size_BYXC[0], -1, self.heads, size_BYXC[-1] // self.heads).transpose(1, 2)
            for part_BYXC in (query_BYXC, key_BYXC, value_BYXC)
        )
        alpha_range = self.alpha() if self.alpha is not None else self.alpha_range
        mixed_BHND = self._attend((query_BHND, key_BHND, value_BHND), rope, alpha_range)
        mixed_BYXC = mixed_BHND.transpose(1, 2).reshape(size_BYXC) + near_BCYX.permute(0, 2, 3, 1)
        return self.proj_drop(self.out_proj(self.ln(mixed_BYXC) * nn.functional.silu(gate_BYXC)))

    def _attend(self, heads: tuple[Tensor, Tensor, Tensor], rope: Rope | None, alpha_range: AlphaRange) -> Tensor:
        query_BHND, key_BHND, value_BHND = heads
        return self.attention(
            query_BHND,
            key_BHND,
            value_BHND,
            alpha_range=alpha_range,
            alpha_gate=self.alpha_gate,
            direction=self.direction,
            key_power=self.key_power,
            rope=rope,
        )
