"""Which devices a trial may use: as many at once as there are, whoever runs it; the rest wait."""

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nala_platform.errors import UserError

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def devices() -> list[str]:
    """The GPUs of this machine that this process may use, by the names that ``CUDA_VISIBLE_DEVICES`` takes."""
    if _VISIBLE in os.environ:
        return [name.strip() for name in os.environ[_VISIBLE].split(",") if name.strip() not in ("", "-1")]
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, encoding="utf-8", timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):  # no driver, so no such device
        return []
    return [str(number) for number, line in enumerate(listed.splitlines()) if line.startswith("GPU ")]


def shares(available: list[str], each: int) -> list[list[str]]:
    """The devices of each slot.

    Raises:
        UserError: a trial wants more devices than there are.

    Examples:
        >>> shares(["0", "1", "2"], 1), shares(["0", "1", "2"], 2)
        ([['0'], ['1'], ['2']], [['0', '1']])
    """
    if each > len(available):
        raise UserError(f"--devices-per-trial is {each}, but this machine has {len(available)} GPUs")
    return [available[start : start + each] for start in range(0, len(available) - each + 1, each)]


@contextmanager
def slot(folder: Path, each: int, is_wanted: Callable[[], bool]) -> Iterator[dict[str, str] | None]:
    """Hold a slot while a trial runs; its environment, or None if it is no longer wanted before one is free.

    A slot is held by a lock of the kernel's on a file in ``folder``, so a process that dies sets it free. On a CPU
    (``each`` is 0) every worker has a slot.
    """
    if each == 0:
        yield {}
        return
    folder.mkdir(exist_ok=True)
    choices = shares(devices(), each)
    while is_wanted():
        for names in choices:
            handle = os.open(folder / f"gpu-{'-'.join(names)}.lock".replace("/", "_"), os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                continue
            try:
                yield {_VISIBLE: ",".join(names)}
            finally:
                os.close(handle)
            return
        time.sleep(0.5)
    yield None
