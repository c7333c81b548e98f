"""Processes that end with the one that started them, however that ends."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # from Linux's prctl.h


def end_with(parent: int, number: int = signal.SIGKILL) -> None:
    """In a process that ``parent`` started: let the kernel send signal ``number`` when that one ends, which nothing
    else tells for sure. Linux alone can promise this; elsewhere it does nothing.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
