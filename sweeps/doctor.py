"""``nala sweep doctor``: what is wrong with a sweep, and how to put it right."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nala_platform import runs
from nala_platform.arguments import Arguments, path

from .folder import open_sweep
from .storage import JOURNAL, cut_torn_line
from .trials import TRIALS, Trials, is_interrupted
from .waiting import holder, is_locked_now, lock_file


class Finding(NamedTuple):
    """One thing that is wrong, and what ``--repair`` does about it."""

    what: str
    mend: str


def doctor(words: list[str]) -> None:
    """Print what is wrong; with ``--repair`` put it right."""
    parser = Arguments("nala sweep doctor", "List what is wrong with a sweep; --repair puts it right.")
    parser.add_argument("folder", type=path, metavar="DIR", help="of a sweep")
    parser.add_argument("--repair", action="store_true", help="put it right")
    options = parser.read(words)
    sweep = open_sweep(options.folder)
    findings = list(_torn_journal(sweep.folder, options.repair))
    trials = sweep.trials()
    findings += [
        *_interrupted(trials, options.repair),
        *_missing_folders(trials),
        *_missing_trials(trials, options.repair),
    ]
    for finding in findings:
        print(f"{finding.what}: {finding.mend}")
    done = sum(trial.state.is_finished() for trial in trials.own())
    print(f"{len(findings)} findings{', repaired' if options.repair and findings else ''}; {done} trials finished")


def _torn_journal(folder: Path, repair: bool) -> Iterator[Finding]:
    path = folder / JOURNAL
    if not path.is_file():
        return
    handle = os.open(path, os.O_RDWR if repair else os.O_RDONLY)
    try:
        if _is_torn(handle) and repair:
            lock_file(handle, path)
        elif _is_torn(handle) and not is_locked_now(handle):  # perhaps it is in the middle of the line
            yield Finding(
                f"{path} ends in half a line, and {holder(path)} holds its lock", "look again when it is done"
            )
            return
        if _is_torn(handle):
            if repair:
                cut_torn_line(handle)
            yield Finding(f"{path} ends in half a line, which a killed process wrote", "the half line is cut off")
    finally:
        os.close(handle)


def _is_torn(handle: int) -> bool:
    size = os.fstat(handle).st_size
    return size > 0 and os.pread(handle, 1, size - 1) != b"\n"


def _interrupted(trials: Trials, repair: bool) -> Iterator[Finding]:
    for trial in trials.release() if repair else filter(is_interrupted, trials.all()):
        beat = trial.user_attrs.get("heartbeat")
        age = f", last sign of life {time.time() - beat:.0f} s ago" if beat else ""
        yield Finding(f"trial {trial.number} was interrupted{age}", "it waits to be gone on with")


def _missing_folders(trials: Trials) -> Iterator[Finding]:
    for trial in trials.all():
        place = trial.user_attrs.get("folder")
        if place is not None and trial.state.is_finished() and not (trials.folder / place / runs.CONFIG).is_file():
            yield Finding(
                f"trial {trial.number} has no run folder {trials.folder / place}",
                "its values stand, its curve is lost; on another machine it may be there",
            )


def _missing_trials(trials: Trials, repair: bool) -> Iterator[Finding]:
    missing = trials.plan.n_trials - len(trials.own())
    if missing > 0:
        if repair:
            trials.provide(trials.plan.n_trials)
        yield Finding(f"{missing} of {trials.plan.n_trials} trials were never made", f"they wait in {TRIALS}/")
