"""Where the tokens of a pass stand: the angles of their rotation, their padding, and the documents they belong to.

Shapes: B batch, N new tokens, M tokens in all (M - N in the cache), D head size.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from nala_platform.attention.signature import Rope
from nala_platform.attention.tracing import is_jit_tracing
from nala_platform.errors import UserError


class Piece(NamedTuple):
    """Tokens ``start`` to ``stop`` of one row: a document, which sees itself only."""

    row: int
    start: int
    stop: int
    rope: Rope
    """(cos, sin), each (tokens of the piece, D)"""


class Layout(NamedTuple):
    """What all layers of a pass share: one rotary table for all rows, or pieces with tables of their own."""

    rope: Rope | None
    """(cos, sin), each (N, D)"""
    pieces: list[Piece]
    """row by row; empty unless ``rope`` is None"""
    padding_BN: Tensor | None
    """True at padding among the new tokens"""
    padding_BM: Tensor | None
    """True at padding among all tokens"""

    def padding_of(self, piece: Piece) -> Tensor | None:
        """The part of ``padding_BN`` that a piece has, (1, tokens)."""
        if self.padding_BN is None:
            return None
        return self.padding_BN[piece.row : piece.row + 1, piece.start : piece.stop]

    def rope_of_rows(self) -> Rope:
        """One pair of tables that broadcasts against (B, H, N, D)."""
        if self.rope is not None:
            return self.rope
        cos, sin = zip(*(piece.rope for piece in self.pieces), strict=True)
        return torch.stack(cos)[:, None], torch.stack(sin)[:, None]


def rotary_tables(position_N: Tensor, head_size: int, *, base: float) -> Rope:
    """``(cos_ND, sin_ND)``, float32: the token at position m turns pair i by ``m * base ** (-2 i / D)``.

    Angles are float64: in float32 those of the fast pairs lose a digit with every ten times the length.
    """
    angle_ND = position_N.to(torch.float64)[:, None] * _frequencies(head_size, base, position_N.device)
    return angle_ND.cos().float(), angle_ND.sin().float()


def _frequencies(head_size: int, base: float, device: torch.device) -> Tensor:
    """(D,), both entries of a pair alike; made once for each device."""
    kind = head_size, base, device
    if torch.compiler.is_compiling() or is_jit_tracing() or _get_current_dispatch_mode() is not None:
        return _new_frequencies(*kind)  # what is made there belongs to a graph
    if kind not in _kept_frequencies:
        with torch.inference_mode(False):
            _kept_frequencies[kind] = _new_frequencies(*kind)
    return _kept_frequencies[kind]


def _new_frequencies(head_size: int, base: float, device: torch.device) -> Tensor:
    exponent = torch.arange(0, head_size, 2, device=device, dtype=torch.float64) / -head_size
    return torch.pow(base, exponent).repeat_interleave(2)


_kept_frequencies: dict[tuple[int, float, torch.device], Tensor] = {}


def padding(attention_mask: Tensor | None, *, batch: int, total: int) -> Tensor | None:
    """True at padding, (B, M).

    Raises:
        UserError: the mask is not (B, M).
    """
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, Tensor) or attention_mask.ndim != 2:
        got = tuple(attention_mask.shape) if isinstance(attention_mask, Tensor) else type(attention_mask).__name__
        raise UserError(
            f"attention_mask must be two-dimensional, (batch, tokens), 1 at tokens and 0 at padding, got {got}: "
            "which token sees which is fixed; give position_ids that restart at 0 for packed documents"
        )
    if attention_mask.shape != (batch, total):
        raise UserError(
            f"attention_mask must be (batch, tokens with those in the cache) = {(batch, total)}, "
            f"got {tuple(attention_mask.shape)}"
        )
    return attention_mask == 0


def checked_positions(position_ids: Tensor, *, batch: int, new: int) -> Tensor:
    """``position_ids`` as (B, N).

    Raises:
        UserError: another shape, or no integers.
    """
    positions = position_ids[None] if position_ids.ndim == 1 else position_ids
    if positions.ndim != 2 or positions.shape[1] != new or positions.shape[0] not in (1, batch):
        raise UserError(f"position_ids must be (batch, tokens) = {(batch, new)}, got {tuple(position_ids.shape)}")
    if positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool:
        raise UserError(f"position_ids must be integers, got {positions.dtype}")
    return positions.expand(batch, -1)


def check_continued(position_BN: Tensor, padding_BM: Tensor | None, *, seen: int) -> None:
    """Positions of tokens that follow others in a cache, whose number they cannot be below.

    Raises:
        UserError: they restart.
    """
    if padding_BM is None:
        is_wrong = position_BN < seen
    else:
        earlier_B1 = (~padding_BM[:, :seen]).sum(dim=1, keepdim=True)
        is_wrong = (position_BN < earlier_B1) & ~padding_BM[:, seen:]
    if is_wrong.any():
        raise UserError(
            f"position_ids restart after the {seen} tokens in the cache: a new document needs a new cache, "
            "and the next tokens of this one have positions that go on"
        )


def document_starts(position_BN: Tensor, padding_BN: Tensor | None) -> Tensor:
    """True at the first token of each document but a row's first, bool (B, N).

    Without padding a document ends where positions do not go on by 1, as in transformers' own packing. With padding,
    whose positions mean nothing, it ends where a token's position is not above that of the token before it.
    """
    if padding_BN is None:
        starts_BN = torch.zeros_like(position_BN, dtype=torch.bool)
        starts_BN[:, 1:] = position_BN.diff(dim=1) != 1
        return starts_BN
    index_BN = torch.arange(position_BN.shape[1], device=position_BN.device).expand_as(position_BN)
    latest_BN = index_BN.masked_fill(padding_BN, -1).cummax(dim=1).values.roll(1, dims=1)
    latest_BN[:, 0] = -1
    before_BN = position_BN.gather(1, latest_BN.clamp_min(0))
    return ~padding_BN & (latest_BN >= 0) & (position_BN <= before_BN)


def layout_of(
    position_BN: Tensor | None, starts_BN: Tensor | None, padding_BM: Tensor | None, *, seen: int, rotary: "Rotary"
) -> Layout:
    """The `Layout` of a pass.

    Args:
        position_BN: given positions; None: the tokens follow the ``seen`` ones.
        starts_BN: `document_starts` of them; None: there is one document in each row.
        padding_BM: see `padding`.
        seen: tokens in the cache.
        rotary: makes the tables.
    """
    padding_BN = padding_BM if padding_BM is None or seen == 0 else padding_BM[:, seen:]
    rope, pieces = None, []
    if position_BN is None:
        rope = rotary.following(seen)
    elif starts_BN is None and _is_one_shift(position_BN, padding_BN, absolute=rotary.is_kept):
        rope = rotary.at(position_BN[0]) if rotary.is_kept else rotary.following(0)
    else:
        pieces = _pieces(position_BN, starts_BN, rotary)
    return Layout(rope, pieces, padding_BN, padding_BM)


class Rotary(NamedTuple):
    """How the tables of a pass are made."""

    new: int
    head_size: int
    base: float
    device: torch.device
    is_kept: bool
    """whether a state or keys are kept, so that positions matter and not distances within this pass alone"""

    def at(self, position_N: Tensor) -> Rope:
        """`rotary_tables` at these positions."""
        return rotary_tables(position_N, self.head_size, base=self.base)

    def following(self, seen: int) -> Rope:
        """`rotary_tables` of the tokens after ``seen`` others."""
        return self.at(torch.arange(seen, seen + self.new, device=self.device, dtype=torch.float64))


def _is_one_shift(position_BN: Tensor, padding_BN: Tensor | None, *, absolute: bool) -> bool:
    """Whether one table serves all rows: of given positions that all rows share, or of any that go up by 1."""
    if absolute:
        return bool((position_BN == position_BN[:1]).all())
    offset_BN = position_BN - torch.arange(position_BN.shape[1], device=position_BN.device)
    real_BN = torch.ones_like(offset_BN) if padding_BN is None else (~padding_BN).int()
    first_B1 = offset_BN.gather(1, real_BN.argmax(dim=1, keepdim=True))
    return bool(((offset_BN == first_B1) | (real_BN == 0)).all())


def _pieces(position_BN: Tensor, starts_BN: Tensor | None, rotary: Rotary) -> list[Piece]:
    batch, new = position_BN.shape
    cuts: list[list[int]] = [[0] for _ in range(batch)]
    for row, start in [] if starts_BN is None else starts_BN.nonzero().tolist():
        cuts[row].append(start)
    return [
        Piece(row, start, stop, rotary.at(position_BN[row, start:stop]))
        for row, starts in enumerate(cuts)
        for start, stop in zip(starts, [*starts[1:], new], strict=True)
    ]
