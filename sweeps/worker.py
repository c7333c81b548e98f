"""A worker of a sweep: claims a trial, runs it, tells how it ended, and so on until none is left.

Run as ``python -m nala_platform.sweeps.worker FOLDER``. Each process of a sweep may be killed at any moment: what it
has claimed and not told is claimed again by another.
"""

import os
import signal
import sys
import time
from typing import Any

from nala_platform.arguments import Arguments, path
from nala_platform.errors import FIRST_SIGNAL, StorageError, UserError

from .attempt import Attempt
from .folder import Sweep, open_sweep
from .outcome import FINISHED, INTERRUPTED, KILLED, Outcome, facts, judge, values
from .owner import HEARTBEAT
from .slots import slot
from .storage import quiet
from .trials import Claim, Trials


class Worker:
    """One worker.

    Args:
        sweep: that it works for.
        threads: of each trial's process on a CPU; None: as torch chooses.
        is_placed: somebody else has given this process its devices.
    """

    def __init__(self, sweep: Sweep, threads: int | None = None, is_placed: bool = False) -> None:
        self.sweep, self.plan, self.threads = sweep, sweep.plan, threads
        self._devices = 0 if is_placed else self.plan.devices_per_trial
        self.trials: Trials = sweep.trials()
        self.stopped_by = 0
        self._last_beat = 0.0

    def listen(self) -> None:
        """Let SIGINT and SIGTERM, also the kernel's at the parent's death, save the trial and end this worker."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda received, frame: setattr(self, "stopped_by", received))

    def work(self, once: bool = False) -> int:
        """Do trials until there is none to claim, or one alone; the exit code."""
        while not self.stopped_by:
            with slot(self.sweep.folder / "slots", self._devices, self._wants_slot) as environment:
                claim = self.trials.claim() if environment is not None and not self.stopped_by else None
                if claim is None:
                    break
                self._run(claim, environment or {})
            if once:
                break
        return FIRST_SIGNAL + self.stopped_by if self.stopped_by else 0

    def _wants_slot(self) -> bool:
        return not self.stopped_by and not self.trials.is_full()

    def _run(self, claim: Claim, environment: dict[str, str]) -> None:
        log = claim.folder.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        objective = self.plan.objectives[0].metric
        if self.plan.devices_per_trial == 0 and self.threads is not None:
            environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(self.threads))}
        self._last_beat = time.monotonic()
        attempt = Attempt(self._words(claim), log, objective if objective.startswith("val/") else "", environment)
        limit = self.plan.trial_timeout_s
        ending = attempt.follow(
            report=lambda said: not self.trials.is_ours(claim) or self._report(claim, said),
            tick=lambda: self._tick(claim),
            seconds=None if limit is None else max(0.0, limit - claim.seconds),
            grace=self.plan.stop_timeout_s,
        )
        outcome = judge(ending, log)
        self._close(claim, self._told_of_stuck(claim, outcome, attempt) if attempt.was_stuck else outcome)

    def _report(self, claim: Claim, said: dict[str, Any]) -> bool:
        return self.trials.report(claim, said["step"], said["value"], self.plan.warmup.end(said))

    def _words(self, claim: Claim) -> list[str]:
        return [
            *("fit", "--task", self.plan.task, *self.plan.overrides, *self.plan.space.words(claim.values)),
            *("--folder", str(claim.folder), "--resume", "auto"),
        ]

    def _tick(self, claim: Claim) -> bool:
        if time.monotonic() - self._last_beat > HEARTBEAT:
            if not self.trials.is_ours(claim):
                return True
            self.trials.beat(claim)
            self._last_beat = time.monotonic()
        return bool(self.stopped_by)

    def _told_of_stuck(self, claim: Claim, outcome: Outcome, attempt: Attempt) -> Outcome:
        """Say that a process had to be killed; what it had done before counts."""
        after = "its work was done" if attempt.is_done else "it was told to end"
        reason = f"the process was still there {self.plan.stop_timeout_s:g} s after {after}, and was killed"
        print(f"nala: trial {claim.number}: {reason}; the sweep goes on", file=sys.stderr, flush=True)
        if attempt.is_done and outcome.name == KILLED:
            outcome = Outcome(FINISHED, outcome.exit)
        return outcome._replace(reason="; ".join(filter(None, (outcome.reason, reason))))

    def _close(self, claim: Claim, outcome: Outcome) -> None:
        if not self.trials.is_ours(claim):
            print(f"nala: trial {claim.number} was taken over by another worker, and is left to it", file=sys.stderr)
        elif outcome.name == INTERRUPTED:
            self.trials.give_back(claim, outcome.exit, is_retry=False)
        elif outcome.is_retry and claim.retries < self.plan.max_retries:
            self.trials.give_back(claim, outcome.exit, is_retry=True)
        else:
            self._finish(claim, outcome)

    def _finish(self, claim: Claim, outcome: Outcome) -> None:
        known: dict[str, Any] = facts(claim.folder)
        found: list[float] | None = None
        if outcome.name == FINISHED:
            reports = self.trials.storage.get_trial(claim.trial._trial_id).intermediate_values
            result = values(self.plan.objectives, reports, known)
            if isinstance(result, str):
                outcome = Outcome("no value", outcome.exit, result)
            else:
                found = result
        elif outcome.is_retry:
            outcome = outcome._replace(reason=f"{outcome.reason}; tried {claim.retries + 1} times")
        seconds = claim.seconds + time.time() - self._started(claim)
        reason = {"reason": outcome.reason} if outcome.reason else {}
        self.trials.finish(claim, outcome.name, outcome.exit, found, seconds=seconds, **reason, **known)

    def _started(self, claim: Claim) -> float:
        return self.trials.storage.get_trial(claim.trial._trial_id).user_attrs["attempts"][-1]["start"]


def main(words: list[str]) -> int:
    """Work for the sweep in the folder that ``words`` name; the exit code."""
    quiet()
    parser = Arguments("a worker", "Do trials of a sweep.")
    parser.add_argument("folder", type=path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--placed", action="store_true")
    try:
        options = parser.read(words)
        worker = Worker(open_sweep(options.folder), options.threads, options.placed)
        worker.listen()
        return worker.work(options.once)
    except (UserError, StorageError) as error:
        print(f"nala: error: {error}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
