"""Who runs a trial, and whether that process still lives."""

import os
import socket
import time
from pathlib import Path
from typing import Any

HEARTBEAT = 15.0  # seconds between two signs of life
STALE = 120.0  # seconds without one after which a process on another machine is given up


def me() -> dict[str, Any]:
    """This process, so that others, and a later boot, can tell it from another of the same number."""
    return {"host": socket.gethostname(), "space": _space(), "pid": os.getpid(), "started": _started(os.getpid())}


def is_me(owner: dict[str, Any]) -> bool:
    """Whether ``owner`` is this process; the host's name, which may change, is for people."""
    return {**owner, "host": None} == {**me(), "host": None}


def is_alive(owner: dict[str, Any], heartbeat: float) -> bool:
    """Whether the process ``owner`` lives: asked of the kernel where it is ours, else by its last sign of life.

    Args:
        owner: what `me` gave there.
        heartbeat: unix time of the last sign.
    """
    if owner.get("space") == _space():
        return _started(owner["pid"]) == owner["started"]
    return time.time() - heartbeat < STALE


def _space() -> str:
    """Names one boot of one machine, and one numbering of processes within it: containers have their own."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def _started(pid: int) -> int | None:
    """When process ``pid`` began, in ticks since the boot; None if there is none, or it is dead and not yet buried."""
    try:
        # the name, in parentheses, may hold anything, so what follows is counted from its end
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
