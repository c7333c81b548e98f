"""Peak memory of a piece of work: the allocator's on a GPU, the resident set's in a process of its own on the CPU."""

import ctypes
import gc
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from nala_platform.bench.turns import said
from nala_platform.errors import UserError
from nala_platform.notices import quiet

Prepare = Callable[[], Callable[[], object]]
"""Makes the inputs, and gives back the work. Of a process of its own: picklable."""
_CONTEXT = multiprocessing.get_context("forkserver")


class Peak(NamedTuple):
    """Of one run of the work."""

    grown: int
    """bytes by which it raised the peak over what its inputs take"""
    seconds: float


class Failed(Exception):
    """The process ended without a figure; the text says why."""


def preload(module: str) -> None:
    """Let the processes to come be copies of one that has imported this: each import would cost seconds."""
    _CONTEXT.set_forkserver_preload([module])


def resident_growth(prepare: Prepare, *small: Prepare) -> Peak:
    """Run the work once, and see the peak of the resident set.

    In a new process that has imported what is needed and has run each of ``small``, the same of other sizes, next to
    nothing mostly: code that is first used, threads and compilation are not the work's. Its peak is then set back to
    what it holds (Linux: ``/proc/self/clear_refs``) and read after the run. If memory runs out, this process is the
    first that the kernel ends.

    Raises:
        UserError: not on Linux.
        Failed: the work raised, or the kernel killed it for its memory.
    """
    if not Path("/proc/self/clear_refs").exists():
        raise UserError("peak memory on the CPU is read from /proc, which Linux alone has: add --no-memory")
    import torch

    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_child, args=(theirs, prepare, small, torch.get_num_threads()))
    process.start()
    theirs.close()
    try:
        found = ours.recv()
    except EOFError:
        process.join()
        raise Failed(f"its process ended with code {process.exitcode}: not enough memory, most likely") from None
    finally:
        ours.close()
    process.join()
    if isinstance(found, str):
        raise Failed(found)
    return found


def _child(answer: Connection, prepare: Prepare, small: tuple[Prepare, ...], threads: int) -> None:
    import torch

    quiet()
    try:
        torch.set_num_threads(threads)
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
        for first in small:
            first()()
        work = prepare()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # free pages that the C library keeps would hide as many of the work's
        before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        start = time.perf_counter()
        kept = work()
        seconds = time.perf_counter() - start
        after = _status("VmHWM")
        del kept
        answer.send(Peak(after - before, seconds))
    except BaseException as error:
        answer.send(said(error))


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def allocated_growth(prepare: Prepare) -> Peak:
    """Run the work, and once more to see the peak of the CUDA allocator; in this process."""
    import torch

    work = prepare()
    work()  # workspaces of the libraries are made once
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    kept = work()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    del kept
    return Peak(torch.cuda.max_memory_allocated() - before, seconds)


def free_bytes(device: str) -> int:
    """What can still be had there: of the machine, or of the control group that the process lives in."""
    if device != "cpu":
        import torch

        # what PyTorch's allocator holds in reserve is to be had too
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    free = [_machine_free()]
    group = Path("/sys/fs/cgroup")
    try:
        most = (group / "memory.max").read_text(encoding="utf-8").strip()
        if most != "max":
            free.append(int(most) - int((group / "memory.current").read_text(encoding="utf-8")))
    except OSError:
        pass  # no control group of its own
    return max(0, min(free))


def readable(count: float) -> str:
    """Bytes, as a person reads them.

    Examples:
        >>> readable(12_582_912), readable(3.2e10)
        ('12.6 MB', '32.0 GB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _machine_free() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
