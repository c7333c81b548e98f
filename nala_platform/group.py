"""Processes that train together, and how they end together.

Lightning starts one process a device and, when one of them fails, kills the others, itself first, without a word; when
the first process is killed, the others may wait for it for ever. Here the group ends with the exit code of the process
that failed, after one message, and none is left.

Processes that torchrun or SLURM starts are theirs to end; nothing here acts on them.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch import Trainer
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from nala_platform.errors import FIRST_SIGNAL, GroupError, StoppedError
from nala_platform.parent import end_with

PARENT_VARIABLE = "NALA_FIRST_PROCESS"
GRACE = 10.0  # seconds in which a process that hears of another's end may end by itself
_SILENCE = 3.0  # seconds in which the first process, failing likewise, speaks for all
_LAST_WORK = 60.0  # seconds for what other processes do after the first is done


class Launcher(_SubprocessScriptLauncher):
    """Lightning's launcher; who watches over the processes is our own.

    Args:
        other: the one that Lightning has made.
        watch: is given the processes, as soon as they have started.
    """

    def __init__(
        self, other: _SubprocessScriptLauncher, watch: Callable[[list[subprocess.Popen[bytes]]], None]
    ) -> None:
        super().__init__(other.cluster_environment, other.num_processes, other.num_nodes)
        self._watch = watch

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Trainer | None = None, **kwargs: Any) -> Any:
        """Start the processes if there are any to start, then call the function, as each of them does."""
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            os.environ[PARENT_VARIABLE] = str(os.getpid())
            self._call_children_scripts()
            self._watch(self.procs)
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)


class Group:
    """The processes of one run on this machine, seen from one of them."""

    def __init__(self) -> None:
        self._others: list[subprocess.Popen[bytes]] = []
        parent = os.environ.get(PARENT_VARIABLE)
        self._is_child = parent is not None and parent != str(os.getpid())
        if self._is_child:
            end_with(int(str(parent)))

    def adopt(self, trainer: Trainer) -> None:
        """Take the place of the trainer's launcher, if it is one that starts processes by running the command again."""
        launcher = trainer.strategy.launcher
        if type(launcher) is _SubprocessScriptLauncher:
            trainer.strategy._launcher = Launcher(launcher, self._watch)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around all that the processes do together: whichever way one leaves the block, all do.

        Raises:
            GroupError: another process has failed, and this one is the first.
        """
        try:
            yield
        except StoppedError:
            self._wait(_LAST_WORK)
            raise
        except BaseException as error:
            if self._is_child:
                time.sleep(_SILENCE)
            elif self._others:
                self._blame(error)
            raise
        else:
            self._wait(_LAST_WORK)
            if failed := self._failed():
                raise failed
        finally:
            self._kill()

    def _blame(self, error: BaseException) -> None:
        """An error here that another process's end may have caused: connections break off then, in many words."""
        end = time.monotonic() + GRACE / 2
        while isinstance(error, RuntimeError) and time.monotonic() < end:
            if failed := self._failed():
                raise failed from None
            time.sleep(0.05)

    def _failed(self) -> GroupError | None:
        for rank, process in enumerate(self._others, 1):
            code = process.poll()
            if code and code > 0:
                return GroupError("", code)  # it has said why
            if code and code < 0:
                name = signal.Signals(-code).name
                text = f"process {rank} of {len(self._others) + 1} was ended by {name}, so all end"
                return GroupError(
                    f"{text}; nala fit --resume RUN resumes it from its last checkpoint", FIRST_SIGNAL - code
                )
        return None

    def _watch(self, others: list[subprocess.Popen[bytes]]) -> None:
        self._others = others
        threading.Thread(target=self._look, name="nala-group", daemon=True).start()

    def _look(self) -> None:
        """For a first process that does not hear of another's end, since it waits for it on a GPU or at the start."""
        while (failed := self._failed()) is None:
            time.sleep(1.0)
        time.sleep(GRACE)
        self._kill()
        if str(failed):
            print(f"nala: error: {failed}", file=sys.stderr, flush=True)
        os._exit(failed.code)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while any(process.poll() is None for process in self._others) and time.monotonic() < end:
            time.sleep(0.02)

    def _kill(self) -> None:
        for process in self._others:
            if process.poll() is None:
                process.kill()
                process.wait()
