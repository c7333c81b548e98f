"""Where workers run: as processes of this machine, or where Ray finds room."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from nala_platform.errors import UserError
from nala_platform.parent import end_with

from .attempt import GRACE
from .folder import open_sweep

_WORKER = "nala_platform.sweeps.worker"


class Handle(Protocol):
    """A worker that was started, as `subprocess.Popen` is one."""

    returncode: int | None

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        ...

    def send_signal(self, sig: int) -> None:
        """Ask it to save and leave."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has one."""
        ...

    def kill(self) -> None:
        """End it."""
        ...


class Executor(Protocol):
    """Starts workers."""

    def start(self) -> Handle:
        """A new worker."""
        ...


class Local:
    """Processes of this machine, which end when the sweep's own process does.

    Args:
        folder: of the sweep.
        workers: that share the machine's cores.
        devices: GPUs of a trial; which ones, the workers settle among themselves (`nala_platform.sweeps.slots`).
    """

    def __init__(self, folder: Path, workers: int, devices: int) -> None:
        self.folder, self.threads = folder, max(1, (os.cpu_count() or 1) // workers)

    def start(self) -> Handle:
        """See `Executor.start`."""
        parent = os.getpid()
        return subprocess.Popen(
            [sys.executable, "-m", _WORKER, str(self.folder), "--threads", str(self.threads)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: end_with(parent, signal.SIGTERM),
        )


class Ray:
    """Ray chooses the machine and the devices of a trial, and nothing more: claims and reports go their usual way.

    The sweep's folder must be one that all machines see, and so must the storage.

    Args:
        folder: of the sweep.
        workers: trials at once.
        devices: GPUs of a trial.

    Raises:
        UserError: Ray is not installed.
    """

    def __init__(self, folder: Path, workers: int, devices: int) -> None:
        try:
            ray: Any = import_module("ray")
        except ImportError as error:
            raise UserError("--executor ray needs: pip install 'nala-platform[ray]'") from error
        self._ray = ray
        if not ray.is_initialized():
            # joins the cluster that RAY_ADDRESS names, or begins one on this machine
            ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
        cores = 0 if devices else 1
        self._work = ray.remote(num_gpus=devices, num_cpus=cores, max_retries=0)(_work)
        self._folder = folder

    def start(self) -> Handle:
        """See `Executor.start`."""
        return _Placed(self._ray, self._work.remote(str(self._folder), os.getcwd()))


class _Placed:
    """One worker that Ray has placed, or will."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray, self._reference = ray, reference
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and self._ray.wait([self._reference], timeout=0)[0]:
            self.wait()
        return self.returncode

    def send_signal(self, sig: int) -> None:
        self._ray.cancel(self._reference)

    def wait(self, timeout: float | None = None) -> int:
        try:
            self.returncode = int(self._ray.get(self._reference, timeout=timeout))
        except self._ray.exceptions.GetTimeoutError as error:
            raise subprocess.TimeoutExpired(_WORKER, timeout or 0.0) from error
        except self._ray.exceptions.RayError:  # cancelled, or its machine is gone: what it had claimed is claimed again
            self.returncode = 1
        return self.returncode

    def kill(self) -> None:
        self._ray.cancel(self._reference, force=True)


def _work(folder: str, directory: str) -> int:
    """On the machine that Ray chose: one worker for one trial, on the devices that Ray made visible."""
    parent = os.getpid()
    process = subprocess.Popen(
        [sys.executable, "-m", _WORKER, folder, "--once", "--placed"],
        cwd=directory,
        preexec_fn=lambda: end_with(parent, signal.SIGTERM),
    )
    try:
        return process.wait()
    except KeyboardInterrupt:  # Ray's cancel
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(open_sweep(Path(folder)).plan.longest_stop_s)
        except subprocess.TimeoutExpired:
            process.kill()  # its trial ends with it
            return process.wait(GRACE)


EXECUTORS: Mapping[str, type[Local] | type[Ray]] = {"local": Local, "ray": Ray}
