"""What PyTorch's own kernels and the compiler are best told in different words: memory, halves, rotations.

Shapes: L tokens of a block, D head size, P = D / 2 pairs, F = 2D features; leading axes are left alone.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from nala_platform.attention.signature import Rope


class Words(NamedTuple):
    """How a block is written down."""

    reuses: bool
    """On a CPU a call puts `Scratch` in the place of ``new``."""
    new: Callable[[Tensor, int], Tensor | None]
    """(x (..., L, X), Y) -> where to put a result (..., L, Y), as an operator's ``out``; None: in memory of its own"""
    split: "Callable[[Tensor, Words], Tensor]"
    """t (..., D) -> [max(t, 0) ; min(t, 0)] (..., 2D); t is given up"""
    turn: Callable[[Tensor, Tensor], Tensor]
    """features (..., L, F), a rotation (L, 2, P) -> the rotated features; those given are given up"""

    def like(self, x_LX: Tensor) -> Tensor | None:
        """``new`` of the same width."""
        return self.new(x_LX, x_LX.shape[-1])


class Turns(NamedTuple):
    """A rotation and its opposite, (L, 2, P) complex: a product of complex numbers is what PyTorch vectorises.

    It stands there once for each half of the features: with an axis that one factor lacks between two others the
    product takes twice as long.
    """

    forth_L2P: Tensor
    back_L2P: Tensor | None
    """None in a forward pass."""


def turns(rope: Rope, tokens: slice, dtype: torch.dtype, words: Words, *, both: bool) -> Turns:
    """Of some tokens, from rotary tables (N, D), in which the entries of a pair are equal."""
    cos_LD, sin_LD = (table_ND[tokens].to(dtype) for table_ND in rope)
    one_L1P = torch.complex(cos_LD[:, None, 0::2], sin_LD[:, None, 0::2], out=_place(words.like(cos_LD), halves=1))
    width = 2 * cos_LD.shape[-1]
    forth_L2P = torch.cat((one_L1P, one_L1P), dim=1, out=_place(words.new(cos_LD, width)))
    back_L2P = torch.conj_physical(forth_L2P, out=_place(words.new(cos_LD, width))) if both else None
    return Turns(forth_L2P, back_L2P)


def rotated(x_LF: Tensor, turn_L2P: Tensor, out_LF: Tensor | None = None) -> Tensor:
    """The features, each half alike."""
    turned = torch.mul(_pairs(x_LF), turn_L2P, out=_place(out_LF))
    return torch.view_as_real(turned).flatten(-3)


def _pairs(x_LX: Tensor, halves: int = 2) -> Tensor:
    return torch.view_as_complex(x_LX.unflatten(-1, (halves, -1, 2)))


def _place(out_LX: Tensor | None, halves: int = 2) -> Tensor | None:
    return None if out_LX is None else _pairs(out_LX, halves)


class Scratch:
    """Memory for the results of one block, used again by the next: ``Words.new`` of a CPU.

    Fresh memory for each result would be mapped in page by page and given back at once: half of the time of a block.
    """

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._taken = 0

    def again(self) -> None:
        """Begin the next block: what was given is free."""
        self._taken = 0

    def __call__(self, x_LX: Tensor, width: int) -> Tensor:
        """See ``Words.new``."""
        shape = (*x_LX.shape[:-1], width)
        size = math.prod(shape)
        if self._taken == len(self._parts):
            self._parts.append(x_LX.new_empty(size))
        if self._parts[self._taken].numel() < size:
            self._parts[self._taken] = x_LX.new_empty(size)
        self._taken += 1
        return self._parts[self._taken - 1][:size].view(shape)


def nowhere(x_LX: Tensor, width: int) -> None:
    """``Words.new`` where fresh memory costs nothing: PyTorch keeps that of a GPU, the compiler plans its own."""


def _split_in_place(signed_LD: Tensor, words: Words) -> Tensor:
    size = signed_LD.shape[-1]
    out_LF = words.new(signed_LD, 2 * size)
    if out_LF is None:
        return _split(signed_LD, words)
    torch.clamp_min(signed_LD, 0, out=out_LF[..., :size])
    torch.clamp_max(signed_LD, 0, out=out_LF[..., size:])
    return out_LF


def _turn_in_place(x_LF: Tensor, turn_L2P: Tensor) -> Tensor:
    _pairs(x_LF).mul_(turn_L2P)
    return x_LF


EAGER = Words(True, nowhere, _split_in_place, _turn_in_place)


def _split(signed_LD: Tensor, words: Words) -> Tensor:
    return torch.cat((signed_LD.clamp_min(0), signed_LD.clamp_max(0)), dim=-1)


COMPILED = Words(False, nowhere, _split, rotated)
