"""What ``nala bench attention`` lets compete: NaLa's backends, the other mechanisms, and the two products alone.

Shapes: B batch, H heads, N tokens, D head size, F = 2D features.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from nala_platform.attention import ATTENTION, Attention, Rope, softmax_attention
from nala_platform.attention.nala import BACKENDS
from nala_platform.errors import UserError, look_up, near
from nala_platform.nn.rope import rotary_tables

FLOOR, SOFTMAX, MATERIALISED, PLAIN = "floor", "softmax", "softmax-materialised", "nala/plain"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
QUADRATIC = (SOFTMAX, MATERIALISED, "nala/reference")
"""Their time grows as N squared, the others' as N."""
_SCORES = {MATERIALISED: (3.0, 3.5), "nala/reference": (3.7, 5.3)}
"""Score matrices (B, H, N, N), float32 or wider, alive at once, forward and with backward: measured on the CPU."""
_FEATURES = (12.0, 35.0)
"""Tensors (B, H, N, 2D), likewise, in the most wasteful of the linear forms: ``plain``, causal with rope."""


class Setting(NamedTuple):
    """What all contestants share."""

    batch: int
    heads: int
    head_dim: int
    dtype: str
    device: str
    is_causal: bool
    has_rope: bool


class Case(NamedTuple):
    """One contestant at one size. A call of `prepare` makes its inputs; picklable, for a process of its own."""

    contestant: str
    setting: Setting
    length: int
    is_training: bool

    def prepare(self) -> Callable[[], object]:
        """Make the inputs; what is given back computes once, with the gradients of q, k and v if ``is_training``."""
        tensors = _floor_inputs(self) if self.contestant == FLOOR else _inputs(self)
        compute: Callable[..., Tensor] = _floor if self.contestant == FLOOR else _function(self)
        if not self.is_training:
            return partial(_forward, compute, tensors)
        setting = self.setting
        shape = (setting.batch, setting.heads, self.length, setting.head_dim)
        gradient = torch.randn(shape, dtype=DTYPES[setting.dtype], device=setting.device)
        return partial(_forward_and_backward, compute, [x.requires_grad_() for x in tensors], gradient)

    def predicted_bytes(self) -> float:
        """About what a run needs beside its inputs; rather too much than too little."""
        setting, index = self.setting, int(self.is_training)
        vectors = setting.batch * setting.heads * self.length * max(4, DTYPES[setting.dtype].itemsize)
        is_math = self.contestant == SOFTMAX and kernel(setting, self.length) == "math"  # torch has no fused one there
        name = MATERIALISED if is_math else self.contestant
        if name in _SCORES:
            return _SCORES[name][index] * vectors * self.length
        return _FEATURES[index] * vectors * 2 * setting.head_dim

    def bytes_moved(self) -> int:
        """Bytes that no way of computing it can avoid: each input read once, each result written once."""
        setting = self.setting
        tensor = setting.batch * setting.heads * self.length * setting.head_dim * DTYPES[setting.dtype].itemsize
        tables = 2 * self.length * setting.head_dim * 4 if setting.has_rope and self.contestant != FLOOR else 0
        features = 2 if self.contestant == FLOOR else 1  # its q and k have F = 2D entries
        forward = (2 * features + 2) * tensor + tables
        # the backward pass reads q, k, v and the gradient of the output, and writes three gradients
        return forward + ((4 * features + 3) * tensor + tables if self.is_training else 0)


def contestants(mechanisms: Iterable[str], backends: Iterable[str]) -> list[str]:
    """``nala/<backend>`` for each backend, the other mechanisms by name, and the floor.

    Raises:
        UserError: an unknown mechanism or backend.
    """
    names: list[str] = []
    known = [*ATTENTION, MATERIALISED]
    for mechanism in mechanisms:
        if mechanism not in known:
            raise UserError(f"no mechanism {mechanism!r}{near(mechanism, known)} Mechanisms: {', '.join(known)}")
        names += [f"nala/{backend}" for backend in backends] if mechanism == "nala" else [mechanism]
    for backend in backends:
        look_up(BACKENDS, backend, option="backend")
    return [*dict.fromkeys(names), FLOOR]


def kernel(setting: Setting, length: int) -> str:
    """Which of torch's kernels ``softmax`` gets there: flash, efficient, math, …"""
    case = Case(SOFTMAX, setting, min(length, 256), is_training=False)
    query, key, value = _inputs(case)
    choose: Callable[..., int] = getattr(torch, "_fused_sdp_choice")  # noqa: B009 - the checker does not see it
    choice = choose(query, key, value, is_causal=setting.is_causal)
    kernels: dict[str, Any] = dict(SDPBackend.__members__)
    names = {int(row): name for name, row in kernels.items()}
    return names.get(choice, str(choice)).lower().removesuffix("_attention")


def _inputs(case: Case) -> list[Tensor]:
    setting = case.setting
    shape = (setting.batch, setting.heads, case.length, setting.head_dim)
    return [torch.randn(shape, dtype=DTYPES[setting.dtype], device=setting.device) for _ in "qkv"]


def _floor_inputs(case: Case) -> list[Tensor]:
    wide = case._replace(setting=case.setting._replace(head_dim=2 * case.setting.head_dim))
    query, key, _ = (x.relu_() for x in _inputs(wide))
    return [query, key, _inputs(case)[0]]


def _floor(phi_q_BHNF: Tensor, phi_k_BHNF: Tensor, value_BHND: Tensor) -> Tensor:
    return phi_q_BHNF @ (phi_k_BHNF.mT @ value_BHND)


def _function(case: Case) -> Callable[..., Tensor]:
    mechanism, _, backend = case.contestant.partition("/")
    function: Attention = materialised if mechanism == MATERIALISED else ATTENTION[mechanism]
    rope = _tables(case) if case.setting.has_rope else None
    return partial(function, backend=backend or "auto", is_causal=case.setting.is_causal, rope=rope)


def materialised(query: Tensor, key: Tensor, value: Tensor, **options: object) -> Tensor:
    """`softmax_attention` through torch's kernel that writes the N x N scores to memory."""
    with sdpa_kernel(SDPBackend.MATH):
        return softmax_attention(query, key, value, **options)  # pyright: ignore[reportArgumentType]


def _tables(case: Case) -> Rope:
    """Those of the picture with N pixels that is nearest to a square."""
    height = next(rows for rows in range(math.isqrt(case.length), 0, -1) if case.length % rows == 0)
    device = torch.device(case.setting.device)
    return rotary_tables(height, case.length // height, case.setting.head_dim, device=device)


def _forward(compute: Callable[..., Tensor], tensors: list[Tensor]) -> Tensor:
    with torch.no_grad():
        return compute(*tensors)


def _forward_and_backward(compute: Callable[..., Tensor], tensors: list[Tensor], gradient: Tensor) -> object:
    return torch.autograd.grad(compute(*tensors), tensors, gradient)
