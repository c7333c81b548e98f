"""One process at a time trains a run. No torch."""

import fcntl
import os
import platform
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from nala_platform.errors import UserError
from nala_platform.runs.folder import LOCK

PATIENCE = 10.0  # seconds: a run that is asked to stop, or was killed, is gone by then
_HELD = (BlockingIOError, PermissionError)  # what a lock that another process holds is answered with


class RunLock:
    """A lock on a run folder: held from `take` to the end of the block, or of the process, however that ends.

    The kernel keeps it, so a process that is killed leaves none behind. It is this process's own: neither loader
    workers nor the other processes of a group hold it. Use as a context.
    """

    def __init__(self) -> None:
        self._handle: int | None = None
        self._path = Path()

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go, and leave no file."""
        if self._handle is not None:
            with suppress(OSError):  # a folder that is gone or cannot be written any more
                self._path.unlink()
            os.close(self._handle)
            self._handle = None

    def take(self, folder: Path) -> None:
        """Lock the run in ``folder``.

        Raises:
            UserError: another process holds it, after `PATIENCE` seconds still.
            OSError: the folder cannot be written.
        """
        self._path, end = folder / LOCK, time.monotonic() + PATIENCE
        while not self._try():
            if time.monotonic() > end:
                raise UserError(
                    f"{folder} is being trained by {_holder(self._path)}: wait for its end, or stop it (kill PID saves "
                    "and leaves)"
                )
            time.sleep(0.1)

    def _try(self) -> bool:
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except _HELD:
            os.close(handle)
            return False
        except OSError:  # a file system without locks
            pass
        if not _is(handle, self._path):  # who held it has removed it since
            os.close(handle)
            return False
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {platform.node()}".encode())
        self._handle = handle
        return True


def _is(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "another process"
    except OSError:
        return "another process"
