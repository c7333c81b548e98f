"""``nala sweep``: begin a study or go on with it, with some workers, and show what comes of it."""

import signal
import subprocess
import time
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from nala_platform.arguments import Arguments, path, positive
from nala_platform.errors import StoppedError, UserError, look_up
from nala_platform.paths import quoted

from .attempt import GRACE
from .doctor import doctor
from .executors import EXECUTORS, Executor, Handle
from .folder import PLAN, Sweep, begin, open_sweep
from .live import LiveTable
from .plan import read_plan
from .slots import devices, shares
from .status import print_status
from .storage import quiet
from .trials import Trials, is_interrupted

_LOOK = 0.5  # seconds between two looks at the trials
_REFUSALS = 10  # workers in a row that end by an error of their own, after which no other is started
_PATIENCE = 30.0  # at most so many seconds before a worker that died gets a successor


def main(words: list[str]) -> None:
    """Do what ``words`` say.

    Raises:
        UserError: no such file, sweep or option; a plan that does not fit the task or the sweep that has begun.
    """
    quiet()
    if words[:1] == ["status"]:
        sweep = _named(words, "status")
        print_status(sweep.trials().study, sweep.folder)
    elif words[:1] == ["doctor"]:
        doctor(words[1:])
    elif words[:1] == ["dashboard"]:
        _dashboard(_named(words, "dashboard"))
    else:
        _sweep(words)


def _sweep(words: list[str]) -> None:
    ours, overrides = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    options = _arguments().read(ours)
    make_executor = look_up(EXECUTORS, options.executor, option="--executor")
    if options.resume is not None:
        sweep = _resumed(options, overrides)
    elif options.space is None:
        raise UserError("nala sweep needs a study, a YAML file such as alpha_warmup_lr, or --resume DIR")
    else:
        plan = read_plan(options.space, overrides=overrides, options=options)
        name = options.name or f"{Path(options.space).stem}-{plan.task}"
        folder = options.sweeps_dir / name
        old = open_sweep(options.new_study_from) if options.new_study_from else None
        if old is not None and [*map(tuple, old.plan.objectives)] != [*map(tuple, plan.objectives)]:
            raise UserError(
                f"--new-study-from {options.new_study_from} has other objectives, so its values say nothing"
            )
        if not (folder / PLAN).is_file():  # else its trials have shown that it fits
            plan.check()
        sweep = begin(folder, name, options.storage, plan)
        if old is not None and (taken := sweep.trials().take_over(old.trials())):
            print(f"taken over from {old.folder}: {taken} finished trials, which the sampler knows now")
    each = sweep.plan.devices_per_trial
    if each and options.executor == "local":
        shares(devices(), each)  # refused before anything starts
    Conductor(sweep, options.workers, make_executor(sweep.folder, options.workers, each)).conduct()


def _resumed(options: Namespace, overrides: list[str]) -> Sweep:
    """The sweep of ``--resume``, with what may change of its plan."""
    if options.space is not None or overrides:
        raise UserError("nala sweep --resume DIR goes on with the plan that it began with: give it no other")
    for name in ("task", "seed", "devices_per_trial", "storage", "name", "new_study_from"):
        if getattr(options, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise UserError(f"nala sweep --resume DIR goes on with the plan that it began with: leave {flag} away")
    sweep = open_sweep(options.resume)
    plan = sweep.plan.with_limits(options.n_trials, options.trial_timeout, options.stop_timeout)
    return sweep if plan == sweep.plan else begin(sweep.folder, sweep.name, sweep.url, plan)


def _arguments() -> Arguments:
    parser = Arguments("nala sweep", "Search a space of configurations; what follows -- goes to every nala fit.")
    parser.add_argument("space", nargs="?", metavar="STUDY", help="a YAML file, or the name of one that is shipped")
    parser.add_argument("--task", help="task, where the study does not name one")
    parser.add_argument("--n-trials", type=positive, help="trials to finish, over all workers and machines")
    parser.add_argument("--workers", type=positive, default=1, help="processes on this machine that run trials (1)")
    parser.add_argument("--executor", default="local", help="where they run: local, or ray (local)")
    parser.add_argument("--devices-per-trial", type=int, help="GPUs of a trial (0: trials share the CPU)")
    parser.add_argument("--trial-timeout", type=float, metavar="SECONDS", help="longest that a trial may take")
    parser.add_argument(
        "--stop-timeout", type=float, metavar="SECONDS", help=f"for a trial to end once it is told to ({GRACE:.0f})"
    )
    parser.add_argument("--storage", metavar="URL", help="database of the study; default: a file in its folder")
    parser.add_argument("--name", help="of the study and its folder")
    parser.add_argument(
        "--new-study-from", type=path, metavar="DIR", help="let a new study know the trials of that sweep"
    )
    parser.add_argument("--sweeps_dir", type=path, default="runs/sweeps", help="where the folder is made (runs/sweeps)")
    parser.add_argument("--seed", type=int, help="of the sampler")
    parser.add_argument("--resume", type=path, metavar="DIR", help="go on with the sweep in this folder")
    return parser


class Conductor:
    """The parent: keeps the workers at work, shows the trials, and reports at the end.

    Args:
        sweep: to be conducted.
        workers: trials at once.
        executor: starts them.
    """

    def __init__(self, sweep: Sweep, workers: int, executor: Executor) -> None:
        self.sweep, self.workers, self.executor = sweep, workers, executor
        self.trials: Trials = sweep.trials()
        self.processes: list[Handle] = []
        self._received = 0
        self._failures, self._refusals, self._not_before = 0, 0, 0.0

    def conduct(self) -> None:
        """Until every trial is finished.

        Raises:
            StoppedError: a signal came; every trial is saved and goes on when the sweep is resumed.
            UserError: workers cannot be started.
        """
        self.trials.provide(self.sweep.plan.n_trials)
        print(f"sweep folder: {self.sweep.folder}", flush=True)
        if self.sweep.plan.pruner is not None and (longest := self.sweep.plan.warmup.describe()):
            print(f"no trial is pruned before the longest warm-up of the space has ended: {longest}", flush=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda received, frame: setattr(self, "_received", received))
        with LiveTable(self.sweep.plan.objectives) as table:
            while True:
                trials = self.trials.own()  # once a look: a database has better to do than to list a study again
                table.update(trials, self.sweep.plan.n_trials)
                if self._received or all(trial.state.is_finished() for trial in trials):
                    break
                self._man(trials)
                time.sleep(_LOOK)
        self._dismiss()
        if self._received:
            command = f"nala sweep --resume {quoted(self.sweep.folder)}"
            raise StoppedError(f"the sweep is stopped, its trials are saved; go on with: {command}", self._received)
        self._conclude()

    def _man(self, trials: list[FrozenTrial]) -> None:
        """Start workers while there is work that nobody does."""
        for process in [one for one in self.processes if one.poll() is not None]:
            self.processes.remove(process)
            self._failures = self._failures + 1 if process.returncode else 0
            self._refusals = self._refusals + 1 if (process.returncode or 0) > 0 else 0  # not those that were killed
            if self._refusals == _REFUSALS:
                raise UserError(
                    f"{_REFUSALS} workers in a row ended by an error, which stands above: the sweep is stopped, its "
                    f"trials are saved; go on with: nala sweep --resume {quoted(self.sweep.folder)}"
                )
            self._not_before = time.monotonic() + min(_PATIENCE, 0.25 * 2.0**self._failures)
        waiting = sum(trial.state == TrialState.WAITING or is_interrupted(trial) for trial in trials)
        for _ in range(min(waiting, self.workers - len(self.processes))):
            if time.monotonic() >= self._not_before:
                self.processes.append(self.executor.start())

    def _dismiss(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(self.sweep.plan.longest_stop_s)
            except subprocess.TimeoutExpired:
                process.kill()

    def _conclude(self) -> None:
        from .report import write_best, write_report  # heavy: matplotlib and scikit-learn, for what is done alone

        study = self.trials.study
        write_report(study, self.sweep.folder)
        done = [trial for trial in self.trials.own() if trial.state == TrialState.COMPLETE]
        print(f"report: {self.sweep.folder / 'report.html'}")
        if not done:
            raise UserError(f"no trial reached a value: nala sweep status {quoted(self.sweep.folder)} says why")
        write_best(study, self.sweep.folder)
        print(f"best: nala fit --task {self.sweep.plan.task} --config {quoted(self.sweep.folder / 'best.yaml')}")


def _named(words: list[str], command: str) -> Sweep:
    parser = Arguments(f"nala sweep {command}", "See nala sweep --help.")
    parser.add_argument("folder", type=path, metavar="DIR", help="of a sweep")
    options: Namespace = parser.read(words[1:])
    return open_sweep(options.folder)


def _dashboard(sweep: Sweep) -> None:
    try:
        dashboard: Any = import_module("optuna_dashboard")
    except ImportError as error:
        raise UserError("nala sweep dashboard needs: pip install 'nala-platform[dashboard]'") from error
    print("http://127.0.0.1:8080/ (Ctrl-C ends it)", flush=True)
    dashboard.run_server(sweep.trials().storage)
