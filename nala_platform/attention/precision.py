"""Sums, norms and states are float32 whatever the input (float64 for float64 input)."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def widest(x: Tensor) -> torch.dtype:
    """The dtype in which ``x`` is summed: float32, or float64 if it is float64."""
    return torch.promote_types(x.dtype, torch.float32)


def widen(x: Tensor) -> Tensor:
    """``x`` in ``widest(x)``."""
    return x.to(widest(x))


def autocast_off(x: Tensor) -> AbstractContextManager[object]:
    """A region in which autocast does not narrow products of ``widen``ed tensors on the device of ``x``."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
