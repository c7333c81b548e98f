"""The machine that figures are of."""

import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from nala_platform.errors import UserError

_COPIED = 256 * 2**20  # bytes: beyond any cache


def check_device(name: str) -> str:
    """``name``, or the device that ``auto`` means.

    Raises:
        UserError: it is not there.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here; --device cpu measures on the processor")
    return name


def describe(device: str) -> str:
    """Processor, threads and torch; on a GPU its name too."""
    processor = f"{_processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    return processor if device == "cpu" else f"{torch.cuda.get_device_name()}, {processor}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def waiter(device: str) -> Callable[[], None]:
    """What returns when the device has done its work."""
    return torch.cuda.synchronize if device == "cuda" else _nothing


def _nothing() -> None:
    pass


def copy_speed(device: str) -> float:
    """Bytes a second, read and written, of a large copy: the best of five."""
    source = torch.zeros(_COPIED, dtype=torch.uint8, device=device)
    target, wait, best = torch.empty_like(source), waiter(device), float("inf")
    for _ in range(6):
        start = time.perf_counter()
        target.copy_(source)
        wait()
        best = min(best, time.perf_counter() - start)
    return 2 * _COPIED / best
