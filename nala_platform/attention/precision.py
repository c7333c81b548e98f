"""Sums, norms and states are float32 whatever the input (float64 for float64 input)."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """``x`` in float32, or in float64 if it is float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def autocast_off(x: Tensor) -> AbstractContextManager[object]:
    """A region in which autocast does not narrow products of ``widen``ed tensors on the device of ``x``."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()
