"""A sweep on disk: its folder, its frozen plan, and where its study lives."""

import json
import os
from pathlib import Path
from typing import NamedTuple

from nala_platform import runs
from nala_platform.errors import UserError
from nala_platform.paths import quoted

from .plan import Plan
from .storage import JOURNAL, exclusive, settled
from .trials import TRIALS, Trials

PLAN, PLACE = "sweep.yaml", "storage.json"


class Sweep(NamedTuple):
    """A sweep that has begun.

    Attributes:
        folder: with its plan, its trials' run folders and its report.
        name: of its study.
        url: of the study's storage; None is the journal in the folder.
        plan: as it was frozen.
    """

    folder: Path
    name: str
    url: str | None
    plan: Plan

    def trials(self) -> Trials:
        """Its trials, seen by this process.

        Raises:
            UserError: the storage cannot be reached, or has them no more.
        """
        gone = UserError(f"the study {self.name} of {self.folder} is gone from its storage, {self._where()}")
        if self.url is None and not (self.folder / JOURNAL).is_file():
            raise gone
        try:
            found = Trials(self.folder, self.url, self.name, self.plan)
        except KeyError as error:
            raise gone from error
        if "plan" not in found.study.user_attrs:
            raise gone
        return found

    def _where(self) -> str:
        return f"the file {self.folder / JOURNAL}" if self.url is None else "the database of --storage"


def open_sweep(folder: Path) -> Sweep:
    """The sweep in ``folder``.

    Raises:
        UserError: there is none.
    """
    if not (folder / PLAN).is_file() or not (folder / PLACE).is_file():
        raise UserError(f"{folder} is not the folder of a sweep: it has no {PLAN} and {PLACE}")
    place = json.loads((folder / PLACE).read_text(encoding="utf-8"))
    return Sweep(folder, place["name"], place["url"], Plan.from_yaml((folder / PLAN).read_text(encoding="utf-8")))


def begin(folder: Path, name: str, url: str | None, plan: Plan) -> Sweep:
    """Make the sweep, or find that it has begun here or on another machine.

    Raises:
        UserError: a study of this name searches another space, or for another task.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {folder}: {error.strerror}; choose another --sweeps_dir") from error
    url = settled(url)
    sweep = Sweep(folder.absolute(), name, url, plan)
    trials = Trials(sweep.folder, url, name, plan, is_new=True)
    with exclusive(trials.storage, sweep.folder, name):
        stored = trials.study.user_attrs.get("plan")
        if stored is not None:
            if differing := Plan.from_dict(stored).differences(plan):
                raise UserError(
                    f"the sweep {name} in {folder} has begun with another plan: {'; '.join(differing)}. Give this one "
                    f"another --name; with --new-study-from {quoted(folder)} it takes the finished trials over"
                )
        elif (folder / TRIALS).is_dir():
            raise UserError(
                f"{folder / TRIALS} holds runs of an earlier sweep {name}, whose study is gone: move {folder} away, or "
                "give this one another --name"
            )
        trials.study.set_user_attr("plan", plan.to_dict())
        runs.write_atomic(folder / PLAN, plan.to_yaml())
        runs.write_json(folder / PLACE, {"name": name, "url": url})
        os.chmod(folder / PLACE, 0o600)  # a URL may hold a password
    return sweep
