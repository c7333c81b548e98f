"""The sampler and the pruner of a plan: which there are, what they draw, and that they need no memory."""

import sys
from pathlib import Path

import optuna
import pytest
import yaml
from nala_platform.sweeps.plan import Objective, Plan, read_plan
from optuna.trial import TrialState, create_trial
from plans import RATE, STUDY, drawn, plan, write

from nala_platform.errors import UserError


def test_several_objectives_are_not_pruned():
    found = plan(objectives=["val/top1", {"metric": "parameters"}, {"metric": "gmacs", "direction": "max"}])
    assert found.objectives == (
        Objective("val/top1", "maximize", "best"),
        Objective("parameters", "minimize", "best"),
        Objective("gmacs", "maximize", "best"),
    )
    assert isinstance(found.make_pruner(), optuna.pruners.NopPruner)
    assert isinstance(plan().make_pruner(), optuna.pruners.MedianPruner)
    assert isinstance(plan(pruner=None).make_pruner(), optuna.pruners.NopPruner)
    assert isinstance(plan(objectives=["parameters"]).make_pruner(), optuna.pruners.NopPruner)


def test_parts_by_class_path_with_their_options():
    hyperband = {"class_path": "HyperbandPruner", "init_args": {"min_resource": 2, "reduction_factor": 4}}
    patient = {"class_path": "PatientPruner", "init_args": {"wrapped_pruner": hyperband, "patience": 2}}
    pruner = plan(pruner=patient).make_pruner()
    assert isinstance(pruner, optuna.pruners.PatientPruner)
    assert isinstance(pruner._wrapped_pruner, optuna.pruners.HyperbandPruner)
    assert pruner._wrapped_pruner._reduction_factor == 4
    sampler = plan(sampler="optuna.samplers.RandomSampler").make_sampler()
    assert isinstance(sampler, optuna.samplers.RandomSampler)


@pytest.mark.parametrize("sampler", [None, "RandomSampler", "NSGAIISampler"])
def test_each_trial_draws_its_own_whichever_worker_makes_it(sampler):
    found = plan(sampler=sampler)
    assert drawn(found, 3) == drawn(Plan.from_yaml(found.to_yaml()), 3)
    assert len({drawn(found, number)["model.optimizer.lr"] for number in range(20)}) == 20
    assert drawn(found, 3) != drawn(plan(sampler=sampler, seed=1), 3)


def test_a_grid_of_trials_that_wait_has_every_point_once_over_workers():
    """As the engine makes and claims trials: added as WAITING, a new sampler for each."""
    found = read_plan("attention")
    assert found.n_trials == 12 and isinstance(found.make_pruner(), optuna.pruners.NopPruner)
    study = optuna.create_study()
    for _ in range(found.n_trials):
        study.add_trial(create_trial(state=TrialState.WAITING))
    points = []
    for number in (*range(0, 12, 2), *range(11, 0, -2)):
        study.sampler = found.make_sampler(number)
        values = found.space.suggest(optuna.Trial(study, study.trials[number]._trial_id))
        points.append((values["model.network.attention"], values["seed_everything"]))
    assert sorted(points) == sorted((name, seed) for name in ("nala", "softmax", "linear", "relu") for seed in range(3))


def test_a_sampler_whose_package_is_missing_is_said_before_the_first_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "cmaes", None)
    two = RATE | {"model.schedule.warmup": {"float": {"low": 0, "high": 0.5}}}
    path = write(tmp_path, yaml.safe_dump({**STUDY, "space": two, "sampler": "CmaEsSampler"}))
    with pytest.raises(UserError, match="sampler: CmaEsSampler needs a package: pip install cmaes"):
        read_plan(path)


def test_tpe_with_conditions_learns_and_warns_of_nothing(recwarn: pytest.WarningsRecorder):
    """Which of two branches is good, and where in it: the draws concentrate there."""
    space = {
        "a": {"categorical": ["x", "y"]},
        "b": {"float": {"low": 0, "high": 1}, "when": {"a": "x"}},
        "c": {"range": {"low": 0, "high": 1}, "when": {"a": "y"}},
    }
    found = plan(space=space)
    study = optuna.create_study(direction="maximize")
    late = []
    for number in range(60):
        study.sampler = found.make_sampler(number)
        trial = study.ask()
        values = found.space.suggest(trial)
        study.tell(trial, 1 - abs(values["b"] - 0.8) if "b" in values else -1.0)
        late.append(values)
    near_best = [values for values in late[40:] if abs(values.get("b", 9) - 0.8) < 0.1]
    assert len(near_best) >= 10  # by chance two of twenty
    assert [str(warning.message) for warning in recwarn] == []
