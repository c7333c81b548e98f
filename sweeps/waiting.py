"""Waits for a lock that another process holds: with a limit, and with a line that says who holds it."""

import fcntl
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nala_platform.errors import StorageError

LIMIT = 120.0  # seconds, after which a holder is taken to be stuck: what is done under a lock takes less
NOTICE = 5.0  # seconds of waiting without a word
_PAUSE = 0.05  # seconds, at most, between two attempts


def wait_until(is_taken: Callable[[], bool], what: str, holder: Callable[[], str]) -> None:
    """Try again and again until ``is_taken`` returns True.

    Args:
        is_taken: tries once, without waiting.
        what: names the lock in the messages.
        holder: names the process that holds it.

    Raises:
        StorageError: `LIMIT` seconds have passed.
    """
    start, pause, is_told = time.monotonic(), 0.001, False
    while not is_taken():
        waited = time.monotonic() - start
        if waited > LIMIT:
            raise StorageError(
                f"{what} has been locked by {holder()} for {LIMIT:.0f} s: wait for the end of that process, or end it, "
                "and start the command again"
            )
        if waited > NOTICE and not is_told:
            is_told = True
            print(
                f"nala: waiting for {holder()}, which holds the lock on {what} (at most {LIMIT:.0f} s)",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(pause)
        pause = min(_PAUSE, 2.0 * pause)


def lock_file(handle: int, path: Path) -> None:
    """Take the kernel's exclusive lock (`flock`) on the open file ``handle``.

    Raises:
        StorageError: another process has held it for `LIMIT` seconds.
    """
    wait_until(lambda: is_locked_now(handle), str(path), lambda: holder(path))


def is_locked_now(handle: int) -> bool:
    """Take the exclusive lock on ``handle`` if it is free; whether it was."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(path: Path) -> str:
    """``process 1234`` for the process that holds the lock on ``path``, as far as this machine's kernel knows."""
    try:
        inode, listed = str(path.stat().st_ino), Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:  # another operating system, or the file is gone
        return "another process"
    for fields in map(str.split, listed):
        # "7: FLOCK ADVISORY WRITE 1234 08:01:5678 0 EOF"; those who wait have "->" as their second field
        if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode and _has_open(fields[4], path):
            return f"process {fields[4]}"
    return "another process"


def _has_open(pid: str, path: Path) -> bool:
    """Inodes are numbered by file system, so the number alone does not tell."""
    try:
        return any(os.path.samefile(file, path) for file in Path(f"/proc/{pid}/fd").iterdir() if file.exists())
    except OSError:  # another user's, or ended
        return False
