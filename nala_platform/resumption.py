"""Where a run that was stopped goes on: its folder, its checkpoint, and what was typed to be different."""

import sys
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from jsonargparse import Namespace, dict_to_namespace
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.table import Table

from nala_platform import runs, yaml_files
from nala_platform.callbacks.resume import RESETS
from nala_platform.errors import UserError, near
from nala_platform.paths import absolute, quoted, shown
from nala_platform.runs import changes
from nala_platform.runs.checkpoint_file import DamagedError, check
from nala_platform.runs.files import remove_partial
from nala_platform.runs.moved import renamed


class Resumption:
    """A run to be gone on with.

    Attributes:
        folder: of the run; everything is written there as before.
        checkpoint: to go on from; None when the run was stopped before it wrote one, and so begins anew.
        is_finished: nothing is left to be trained.
        epochs: begun, at the checkpoint.
        steps: done, at the checkpoint.
        changes: what differs from the run's configuration.

    Args:
        where: a run folder, or a checkpoint file in one.
        ckpt_path: ``None`` or ``last``: the newest whole checkpoint; ``best``; or a path.
        resets: words of ``RESETS``, parted by commas.

    Raises:
        UserError: no run, an unknown reset, or no whole checkpoint where one was named.
    """

    def __init__(self, where: str, ckpt_path: str | None, resets: str) -> None:
        self.resets = _known(resets)
        place = absolute(where)
        named = place if place.is_file() else None
        self.folder = named.parent.parent if named else place
        if ckpt_path not in (None, "last"):
            named = self.folder / runs.CHECKPOINTS / runs.BEST if ckpt_path == "best" else absolute(str(ckpt_path))
        note: dict[str, Any] = {}
        self.checkpoint = named
        if named is None:
            self.checkpoint, note = newest(self.folder)
        elif not named.is_file():
            raise UserError(
                f"no checkpoint at {shown(named)}: nala fit --resume {quoted(self.folder)} takes the latest there is"
            )
        else:
            note = check(named)
        self.is_finished = bool(note.get("finished"))
        # an epoch that is begun counts
        self.epochs, self.steps = note.get("epoch", 0) + bool(note.get("batch")), note.get("step") or 0
        self.changes: list[changes.Change] = []

    def settle(self, config: Namespace, as_text: str) -> None:
        """Compare with the run's configuration, refuse, and put back what is restored.

        Args:
            config: as parsed; changed in place where the run's value stays.
            as_text: the same as YAML.

        Raises:
            UserError: a change that would make this another run.
        """
        path = self.folder / runs.CONFIG
        stored = yaml_files.load_keys(renamed(yaml_files.read_text(path)), str(path))
        wanted = yaml_files.load(as_text)
        for key, places in changes.appended_again(stored, wanted).items():
            *above, name = key.split(".")
            branch = reduce(getitem, above, wanted)
            for tree, part in ((config, key), (branch, name)):
                tree[part] = [entry for place, entry in enumerate(tree[part]) if place not in places]
        self.changes = changes.compare(stored, wanted, self.resets)
        changes.refuse(self.changes)
        rate = config.get(changes.RATE)
        for root in changes.restored_subtrees(self.changes):
            value: Any = stored
            for part in root.split("."):
                value = value[part]
            config[root] = dict_to_namespace(value)
        if changes.keeps_rate(self.changes):
            config[changes.RATE] = rate
        limits = [c for c in self.changes if c.key.startswith(("trainer.max_", "trainer.min_"))]
        self.is_finished &= not limits and not self.resets
        planned = config.get("trainer.max_epochs")
        if planned not in (None, -1) and planned < self.epochs:
            raise UserError(
                f"trainer.max_epochs is {planned}, but the run is in or behind epoch {self.epochs}: give that or more"
            )
        planned = config.get("trainer.max_steps")
        if planned not in (None, -1) and planned < self.steps:
            raise UserError(f"trainer.max_steps is {planned}, but the run has done {self.steps}: give that or more")

    @rank_zero_only
    def tell(self) -> None:
        """Say from where the run goes on, and what becomes of each change."""
        if self.checkpoint is None:
            print(f"{shown(self.folder)} has no checkpoint yet: the run begins anew")
        elif self.is_finished:
            print(f"{shown(self.folder)} is trained to its end, step {self.steps}: scoring it again")
        else:
            print(f"resuming {shown(self.checkpoint)} at step {self.steps}")
        if not self.changes:
            return
        table = Table(title="changed keys", title_justify="left")
        for column in ("key", "in the run", "asked for", ""):
            table.add_column(column, overflow="fold")
        for change in self.changes:
            verdict = f"{change.verdict}: {change.mend}" if change.mend else change.verdict
            table.add_row(change.key, str(change.stored), str(change.wanted), verdict)
        Console(width=None if sys.stdout.isatty() else 120).print(table)

    @rank_zero_only
    def tidy(self) -> None:
        """Remove what a killed process left half-written, and a log that no checkpoint knows."""
        for folder in (self.folder, self.folder / runs.CHECKPOINTS):
            remove_partial(folder)
        (self.folder / runs.CHECKPOINTS / runs.STAGED).unlink(missing_ok=True)
        if self.checkpoint is None:
            (self.folder / runs.METRICS).unlink(missing_ok=True)


def newest(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """The latest whole checkpoint of a run and its note; one that is damaged is named and passed by.

    Raises:
        UserError: there are checkpoints, and all are damaged.
    """
    complaints = []
    for name in (runs.LAST, runs.PREVIOUS, runs.BEST):
        path = folder / runs.CHECKPOINTS / name
        if not path.is_file():
            continue
        try:
            return path, check(path)
        except DamagedError as error:
            complaints.append(str(error))
            _warn(f"nala: warning: {error}; taking the one before it")
    if complaints:
        raise UserError(f"no whole checkpoint in {shown(folder)}: {'; '.join(complaints)}")
    return None, {}


def saved(folder: Path) -> str:
    """What a run whose disk fails has saved, and how it is resumed: the end of an error's message."""
    try:
        path, note = newest(folder)
    except (OSError, UserError) as error:
        return f"; then nala fit --resume {quoted(folder)} resumes the run if a checkpoint is whole ({error})"
    if path is None:
        return "; nothing of this run was saved yet, so start it again then"
    step = f" of step {note['step']}" if note.get("step") is not None else ""
    return f"; then nala fit --resume {quoted(folder)} resumes the run from {path.name}{step}, which is whole"


def to_score(folder: Path) -> Path | None:
    """The checkpoint of a finished training to be scored: the best, and where that is gone or damaged the latest one.

    What takes its place is said. None: there is no checkpoint.

    Raises:
        UserError: there are checkpoints, and all are damaged.
    """
    best = folder / runs.CHECKPOINTS / runs.BEST
    try:
        if best.is_file() and check(best) is not None:
            return best
        reason = f"{best} is missing"
    except DamagedError as error:
        reason = str(error)
    latest, _ = newest(folder)
    if latest is not None:
        _warn(f"nala: warning: {reason}; the test runs on {latest.name}, the latest state")
    return latest


@rank_zero_only
def _warn(text: str) -> None:
    print(text, file=sys.stderr)


def _known(resets: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in resets.split(",") if word.strip())
    for word in words:
        if word not in RESETS:
            raise UserError(f"--reset {word!r} is unknown{near(word, RESETS)} Known: {', '.join(RESETS)}")
    return words
