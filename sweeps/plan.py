"""What a sweep does, frozen when it begins: read from a study file, kept in the sweep's folder and in its storage."""

import json
import math
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler
from optuna.trial import create_trial

from nala_platform import argv, yaml_files
from nala_platform.errors import UserError, near

from .attempt import GRACE
from .dimension import number
from .objective import Objective, checkpoint_words, read_objectives, refuse_other_checkpoint
from .part import Part, make_part, read_part
from .rehearsal import rehearse
from .space import Space
from .study_file import find_study, read_settings
from .warmup import Warmup, longest_warmup

__all__ = ["Objective", "Plan", "read_plan"]

_SAMPLERS, _PRUNERS = "optuna.samplers", "optuna.pruners"
_SET_BY_THE_SWEEP = ("--task", "--folder", "--resume", "--reset", "--name", "--runs_dir", "--ckpt_path")
# What a run makes absolute too: a sweep may go on from another folder than the one where it began.
_PLACE = re.compile(
    r"--data\.(?:[\w.]+\.)?(?:root|path|predict_path|cache_dir|tokenizer|test_sets|(?:train|val|test)_[hl]r)"
)


@dataclass(frozen=True)
class Plan:
    """A sweep's plan.

    Args:
        title: for people.
        task: of every trial.
        overrides: words of every trial's ``nala fit`` beside those of the space.
        space: that is searched.
        objectives: the first is what trials report while they run.
        sampler: proposes values.
        pruner: gives hopeless trials up; None: no trial is.
        n_trials: to be finished, over all workers and machines.
        seed: of the sampler.
        max_retries: of a trial that something else than its own values brought down.
        trial_timeout_s: seconds that a trial may take; None: as many as it wants.
        devices_per_trial: GPUs; 0: trials share the CPU.
        stop_timeout_s: seconds in which a trial's processes end once it is pruned, stopped or done; then they are
            killed.
    """

    title: str
    task: str
    overrides: tuple[str, ...]
    space: Space
    objectives: tuple[Objective, ...]
    sampler: Part
    pruner: Part | None
    n_trials: int
    seed: int
    max_retries: int
    trial_timeout_s: float | None
    devices_per_trial: int
    stop_timeout_s: float = GRACE

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], where: str = "sweep.yaml") -> "Plan":
        """From the keys of a study file, or from `to_dict`; what is not said is the default.

        Raises:
            UserError: a key or value is wrong; the message begins with ``where``.
        """
        known = [field.name for field in fields(cls)]
        for key in settings:
            if key not in known:
                raise UserError(f"{where}: a study has no {key!r}{near(str(key), known)} It has {', '.join(known)}")
        task, space = _task(settings.get("task"), where), Space(settings.get("space"), where)
        overrides = _overrides(settings.get("overrides") or (), space, where)
        objectives = read_objectives(settings.get("objectives"), task, overrides, f"{where}: objectives")
        sampler = _sampler(settings.get("sampler"), space, objectives, where)
        timeout = settings.get("trial_timeout_s")
        return cls(
            title=str(settings.get("title") or Path(where).stem),
            task=task,
            overrides=(*overrides, *checkpoint_words(objectives, task, overrides)),
            space=space,
            objectives=objectives,
            sampler=sampler,
            pruner=_pruner(settings, objectives, sampler, where),
            n_trials=_n_trials(settings.get("n_trials"), sampler, space, where),
            seed=_count(settings, "seed", 0, where),
            max_retries=_count(settings, "max_retries", 3, where),
            trial_timeout_s=None if timeout is None else _positive(timeout, f"{where}: trial_timeout_s"),
            devices_per_trial=_count(settings, "devices_per_trial", 0, where),
            stop_timeout_s=_positive(settings.get("stop_timeout_s", GRACE), f"{where}: stop_timeout_s"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, also for JSON, of which `from_dict` makes an equal plan."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return plain | {
            "overrides": list(self.overrides),
            "space": self.space.canonical(),
            "objectives": [objective._asdict() for objective in self.objectives],
            "sampler": self.sampler._asdict(),
            "pruner": None if self.pruner is None else self.pruner._asdict(),
        }

    @classmethod
    def from_yaml(cls, text: str, where: str = "sweep.yaml") -> "Plan":
        """From the text of a study file, or from `to_yaml`."""
        return cls.from_dict(read_settings(text, where), where)

    def to_yaml(self) -> str:
        """A complete study file."""
        return yaml_files.dump(self.to_dict(), width=120)

    @cached_property
    def warmup(self) -> Warmup:
        """The longest warm-up of the space, before the end of which nothing is pruned."""
        return longest_warmup(self.space)

    @property
    def longest_stop_s(self) -> float:
        """Seconds that a worker takes at most to end when it is asked to: it waits for its trial, before and after
        the trial is killed.
        """
        return 2 * self.stop_timeout_s + GRACE

    def with_trials(self, n_trials: int) -> "Plan":
        """The same plan with another number of trials.

        Raises:
            UserError: more than a grid has points.
        """
        return replace(self, n_trials=_n_trials(n_trials, self.sampler, self.space, self.title))

    def with_limits(self, n_trials: int | None, trial_timeout: float | None, stop_timeout: float | None) -> "Plan":
        """The same plan with other limits, where they are not None.

        Raises:
            UserError: more trials than a grid has points, or a time that is not above 0.
        """
        plan = self if n_trials is None else self.with_trials(n_trials)
        times = {"trial_timeout_s": trial_timeout, "stop_timeout_s": stop_timeout}
        return replace(plan, **{key: _positive(value, key) for key, value in times.items() if value is not None})

    def make_sampler(self, trial: int = 0) -> BaseSampler:
        """The sampler, for the trial of this number: each trial's draws are its own, whichever worker makes them.

        Raises:
            UserError: no such class or option.
        """
        if self.sampler.name == "GridSampler":
            return make_part(self.sampler, BaseSampler, "sampler", search_space=self.space.grid(), seed=self.seed)
        # the points of a sequence are numbered: every worker must draw from the same one; others must not draw the same
        is_sequence = self.sampler.name == "QMCSampler"
        seed = self.seed if is_sequence else int(np.random.SeedSequence([self.seed, trial]).generate_state(1)[0])
        return make_part(self.sampler, BaseSampler, "sampler", seed=seed)

    def make_pruner(self) -> BasePruner:
        """The pruner.

        Raises:
            UserError: no such class or option.
        """
        return NopPruner() if self.pruner is None else make_part(self.pruner, BasePruner, "pruner")

    def check(self) -> None:
        """See to it, before the first trial, that the task's configuration takes the space; see `rehearse`."""
        rehearse(self.task, self.overrides, self.space)

    def differences(self, other: "Plan") -> list[str]:
        """Why trials of ``other`` cannot stand in one study with those of this plan, a line each; none: they can.

        Number of trials, retries, time limits, devices, sampler and pruner may change; of a grid, whose points the
        sampler and the seed number, they may not.
        """
        is_grid = "GridSampler" in (self.sampler.name, other.sampler.name)
        ours, theirs = self.to_dict(), other.to_dict()
        return [
            f"{key}: {_shown(ours[key])} in the sweep, {_shown(theirs[key])} was asked for"
            for key in ("task", "overrides", "objectives", *(("sampler", "seed") if is_grid else ()))
            if ours[key] != theirs[key]
        ] + self.space.diff(other.space)


def read_plan(study: str, overrides: Sequence[str] = (), options: Namespace | None = None) -> Plan:
    """The plan of a study file and what was typed beside it.

    Args:
        study: path of a study file, or the name of one that is shipped.
        overrides: words for ``nala fit``; they come behind the study's own, so they win.
        options: may hold ``task``, ``n_trials``, ``seed``, ``devices_per_trial``, ``trial_timeout``, ``stop_timeout``;
            what is not None beats the study.

    Raises:
        UserError: no such study, or a mistake in it; the message names the file and the key.
    """
    path = find_study(study)
    settings = read_settings(yaml_files.read_text(path), str(path))
    names = {"trial_timeout": "trial_timeout_s", "stop_timeout": "stop_timeout_s"}
    for key in ("task", "n_trials", "seed", "devices_per_trial", *names):
        if (value := getattr(options, key, None)) is not None:
            settings[names.get(key, key)] = value
    own = settings.get("overrides") or []
    settings["overrides"] = [*own, *overrides] if isinstance(own, list) else own
    plan = Plan.from_dict(settings, str(path))
    refuse_other_checkpoint(plan.objectives, plan.task, plan.overrides, plan.space.paths, str(path))
    plan.make_pruner()
    _try_sampler(plan)
    return plan


def _try_sampler(plan: Plan) -> None:
    """Draw a few trials: some samplers need a package that they import only then."""
    study = optuna.create_study(directions=[objective.direction for objective in plan.objectives])
    for place in range(1 if plan.sampler.name == "GridSampler" else 3):
        study.sampler = plan.make_sampler(place)
        trial = study.ask()
        try:
            plan.space.suggest(trial)
        except ImportError as error:
            raise UserError(f"sampler: {plan.sampler.name} needs a package: pip install {error.name}") from error
        drawn = {"params": trial.params, "distributions": trial.distributions}
        study.add_trial(create_trial(**drawn, values=[float(place)] * len(plan.objectives)))


def _task(name: Any, where: str) -> str:
    names = [task.name for task in argv.tasks()]
    if name is None:
        raise UserError(f"{where} names no task: add --task NAME ({', '.join(names)})")
    if name not in names:
        raise UserError(f"{where}: no task {name!r}{near(str(name), names)} Tasks: {', '.join(names)}")
    return name


def _overrides(words: Any, space: Space, where: str) -> tuple[str, ...]:
    """Checked, and with the paths on disk made absolute."""
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise UserError(f"{where}: overrides is a list of words as typed: [--config, smoke, --trainer.max_epochs=3]")
    result: list[str] = []
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in _SET_BY_THE_SWEEP:
            raise UserError(f"{flag} cannot go to the trials of a sweep: it sets that itself")
        if (path := flag.removeprefix("--").replace(".init_args", "")) in space.paths and flag != path:
            raise UserError(f"{where}: the sweep searches {path}: leave {flag} away, or take it out of the space")
        if equals:
            result.append(f"{flag}={_absolute(flag, value)}")
        else:
            result.append(_absolute(words[place - 1], word) if place else word)
    return tuple(result)


def _absolute(flag: str, value: str) -> str:
    path = Path(value).expanduser()
    is_file = flag in ("--config", "-c") and path.is_file()  # else the name of one that is shipped
    is_place = _PLACE.fullmatch(flag) and path.exists() and value not in ("bpe", "bytes")  # names of tokenizers
    return str(path.absolute()) if is_file or is_place else value


def _sampler(given: Any, space: Space, objectives: tuple[Objective, ...], where: str) -> Part:
    if given is not None:
        return read_part(given, _SAMPLERS, f"{where}: sampler")
    options: dict[str, Any] = {"constant_liar": True}  # trials that run count as bad ones: no two workers try the same
    if len(objectives) == 1:
        options |= {"multivariate": True} | ({"group": True} if space.has_conditions else {})
    return Part(f"{_SAMPLERS}.TPESampler", options)


def _pruner(settings: Mapping[str, Any], objectives: tuple[Objective, ...], sampler: Part, where: str) -> Part | None:
    can_prune = len(objectives) == 1 and objectives[0].metric.startswith("val/")
    if settings.get("pruner") is not None:
        if not can_prune:
            raise UserError(f"{where}: pruner: one objective that is a val/… metric can be pruned by: pruner: null")
        return read_part(settings["pruner"], _PRUNERS, f"{where}: pruner")
    if "pruner" in settings or not can_prune or sampler.name == "GridSampler":
        return None  # a grid is a comparison: every point is to be known
    return Part(f"{_PRUNERS}.MedianPruner", {"n_startup_trials": 5})


def _n_trials(given: Any, sampler: Part, space: Space, where: str) -> int:
    points = math.prod(map(len, space.grid().values())) if sampler.name == "GridSampler" else None
    if given is None and points is None:
        raise UserError(f"{where} names no number of trials: add n_trials: 40, or --n-trials 40")
    count = int(_positive(given if given is not None else points, f"{where}: n_trials", whole=True))
    if points is not None and count > points:
        raise UserError(f"{where}: n_trials: {count}, but the grid has {points} points")
    return count


def _count(settings: Mapping[str, Any], key: str, default: int, where: str) -> int:
    value = settings.get(key)
    read = int(number(default if value is None else value, f"{where}: {key}", whole=True))
    if read < 0:
        raise UserError(f"{where}: {key} must be 0 or more, got {read}")
    return read


def _positive(value: Any, where: str, whole: bool = False) -> float | int:
    if (read := number(value, where, whole)) <= 0:
        raise UserError(f"{where} must be above 0, got {value}")
    return read


def _shown(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value) or "nothing"
    return json.dumps(value, ensure_ascii=False).replace('"', "")
