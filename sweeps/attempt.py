"""One `nala fit` process of a trial, from its start to how it ended.

The run tells its worker each score through a pipe and waits for the answer, go on or stop: nothing of Optuna's is in
the run, and a stop comes at the same step of all its processes. The run dies with its worker, so no two ever write to
one run folder.
"""

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from nala_platform.parent import end_with

REPORT_VARIABLE = "NALA_SWEEP_REPORT"  # "<file descriptor of answers>,<of reports>,<metric>"
GRACE = 60.0  # seconds in which a process ends once it is asked to, or has done its work; a study may say otherwise


class Ending(NamedTuple):
    """How a process ended: its exit code, and which of our own doings came before."""

    code: int
    was_pruned: bool = False
    was_out_of_time: bool = False
    was_stopped: bool = False


class Attempt:
    """A running process.

    Args:
        words: of the command behind ``nala``.
        log: file to which what it prints is appended.
        metric: that it reports after each validation.
        environment: variables beside those of this process.

    Attributes:
        is_done: it has said that all its work is done.
        was_stuck: it did not end in time, after it was asked to or was done, and so was killed.
    """

    def __init__(self, words: list[str], log: Path, metric: str, environment: dict[str, str]) -> None:
        answers, self._answer = os.pipe()
        self._reports, reports = os.pipe()
        self._open = b""
        self.is_done = self.was_stuck = False
        variables = {**os.environ, **environment, REPORT_VARIABLE: f"{answers},{reports},{metric}"}
        parent = os.getpid()
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nala_platform", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=variables,
                pass_fds=(answers, reports),
                start_new_session=True,  # Ctrl-C reaches the worker, which decides
                preexec_fn=lambda: end_with(parent),
            )
        os.close(answers)
        os.close(reports)

    def follow(
        self,
        report: Callable[[dict[str, Any]], bool],
        tick: Callable[[], bool],
        seconds: float | None,
        grace: float | None = None,
    ) -> Ending:
        """Attend the process until it ends, which it does within ``grace`` once it is asked to.

        Args:
            report: is given each report; True lets the run stop.
            tick: is called about each second; True asks the run to save and leave.
            seconds: it may take; None: as many as it wants.
            grace: seconds in which it ends after it was asked to, or has said that its work is done; then its whole
                process group is killed. None: `GRACE`.
        """
        try:
            return self._follow(report, tick, seconds, GRACE if grace is None else grace)
        finally:
            self.close()

    def _follow(
        self, report: Callable[[dict[str, Any]], bool], tick: Callable[[], bool], seconds: float | None, grace: float
    ) -> Ending:
        start, deadline, ending = time.monotonic(), math.inf, Ending(-signal.SIGKILL)
        while self.process.poll() is None:
            if self._wait(1.0):
                ending = ending._replace(was_pruned=self._attend(report) or ending.was_pruned)
            # a sign of life is due in its last seconds too, or another machine would take the trial over
            wants_stop, now = tick(), time.monotonic()
            if now > deadline:
                if self.was_stuck:  # not even the kernel can end it, as when a disk does not answer
                    return ending
                self.was_stuck, deadline = True, now + grace
                self._signal(signal.SIGKILL)
            elif deadline < math.inf:
                continue
            elif ending.was_pruned or self.is_done:
                deadline = now + grace
            elif seconds is not None and now - start > seconds:
                ending, deadline = ending._replace(was_out_of_time=True), now + grace
                self._signal(signal.SIGTERM)
            elif wants_stop:
                ending, deadline = ending._replace(was_stopped=True), now + grace
                self._signal(signal.SIGTERM)
        while self._wait(0.0) and self._attend(report, answer=False) is not None:
            pass
        return ending._replace(code=self.process.returncode)

    def close(self) -> None:
        """Leave nothing of the process group behind."""
        self._signal(signal.SIGKILL)
        os.close(self._reports)
        os.close(self._answer)

    def _wait(self, seconds: float) -> bool:
        return bool(select.select([self._reports], [], [], seconds)[0])

    def _attend(self, report: Callable[[dict[str, Any]], bool], answer: bool = True) -> bool | None:
        """Take what the run said; None at the end of it, else whether it is to stop."""
        data = os.read(self._reports, 65536)
        if not data:
            time.sleep(0.05)  # the pipe is closed, so it is always ready; the process is about to end
            return None
        *lines, self._open = (self._open + data).split(b"\n")
        said = [json.loads(line) for line in lines if line]
        self.is_done |= any("done" in one for one in said)
        stops = [report(one) for one in said if "done" not in one]
        if stops and answer:
            with contextlib.suppress(BrokenPipeError):  # it died while it waited: how, its exit code tells
                os.write(self._answer, b"stop\n" if any(stops) else b"go on\n")
        return any(stops)

    def _signal(self, number: int) -> None:
        try:
            # the group's first process hears of a request to save, and tells the others; a kill is for all of them
            (os.kill if number == signal.SIGTERM else os.killpg)(self.process.pid, number)
        except ProcessLookupError:
            return
