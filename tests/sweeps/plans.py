"""Plans of sweeps, for the tests."""

from pathlib import Path
from typing import Any

import optuna
from nala_platform.sweeps.plan import Plan

RATE = {"model.optimizer.lr": {"float": {"low": 1e-4, "high": 1e-2, "log": True}}}
STUDY = {"task": "cls", "n_trials": 5, "space": RATE}
optuna.logging.set_verbosity(optuna.logging.WARNING)


def plan(**settings: Any) -> Plan:
    return Plan.from_dict({**STUDY, **settings}, "my.yaml")


def write(folder: Path, text: str) -> str:
    (folder / "my.yaml").write_text(text)
    return str(folder / "my.yaml")


def drawn(found: Plan, number: int) -> dict[str, Any]:
    study = optuna.create_study(sampler=found.make_sampler(number))
    return found.space.suggest(study.ask())
