"""Sweeps that never ran: studies with trials and run folders as a sweep leaves them."""

import csv
import json
import math
import time
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import optuna
from nala_platform.sweeps.owner import me
from nala_platform.sweeps.plan import Plan
from optuna.study import Study
from optuna.trial import FixedTrial, TrialState, create_trial

ALPHA = {
    "title": "alpha range, warm-up & learning rate",
    "task": "cls",
    "n_trials": 40,
    "space": {
        "model.network.alpha_range": {"range": {"low": 0.5, "high": 5.0, "min_width": 0.25}},
        "model.network.alpha_gate": {"categorical": ["tanh", "sigmoid"]},
        "model.optimizer.lr": {"float": {"low": 1e-4, "high": 1e-1, "log": True}},
        "model.schedule.warmup": {"float": {"low": 0.0, "high": 0.4}},
    },
}
MECHANISMS = {
    "title": "mechanisms",
    "task": "cls",
    "space": {
        "model.network.attention": {"categorical": ["nala", "softmax", "linear", "relu"]},
        "seed_everything": {"categorical": [0, 1, 2]},
    },
    "sampler": "GridSampler",
}
PLANS: WeakKeyDictionary[Study, Plan] = WeakKeyDictionary()


def make_study(settings: dict[str, Any]) -> Study:
    """A study in memory, with the plan of ``settings``."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    plan = Plan.from_dict(settings)
    study = optuna.create_study(directions=[objective.direction for objective in plan.objectives])
    study.set_user_attr("plan", plan.to_dict())
    PLANS[study] = plan
    return study


def add(
    study: Study,
    folder: Path,
    params: dict[str, Any],
    values: list[float] | None = None,
    state: TrialState = TrialState.COMPLETE,
    curve: list[tuple[int, float]] = (),
    test: dict[str, float] | None = None,
    **facts: Any,
) -> None:
    """Add a trial, with its run folder.

    Args:
        study: of `make_study`.
        folder: of the sweep.
        params: as Optuna knows them.
        values: of the objectives.
        state: of the trial.
        curve: steps and values of the first objective.
        test: metrics of the test split.
        facts: user attributes.
    """
    plan = PLANS[study]
    fixed = FixedTrial(params)
    if params:
        plan.space.suggest(fixed)
    number = len(study.get_trials(deepcopy=False))
    place = f"trials/{number:05d}"
    known: dict[str, Any] = {"folder": place} if params else {}
    if state.is_finished():
        known["seconds"] = 60.0 + number
    if state == TrialState.RUNNING:
        known |= {"owner": me(), "heartbeat": time.time(), "attempts": [me() | {"start": time.time() - 30}]}
    elif params:
        known["attempts"] = [me() | {"start": 100.0, "end": 160.0, "exit": "exit code 0"}]
    if test:
        known["metrics"] = test
    study.add_trial(
        create_trial(
            state=state,
            values=values,
            params=params,
            distributions=fixed.distributions,
            user_attrs=known | facts,
            intermediate_values=dict(curve),
        )
    )
    if curve:
        write_run(folder / place, plan.objectives[0].metric, curve, test)


def write_run(folder: Path, metric: str, curve: list[tuple[int, float]], test: dict[str, float] | None) -> None:
    """The files of a run."""
    folder.mkdir(parents=True)
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "epoch", "lr", "train/loss_epoch", metric])
        for epoch, (step, value) in enumerate(curve):
            writer.writerow([step - 1, epoch, 0.001, "", ""])
            writer.writerow([step, epoch, 0.001, 2.3 * math.exp(-epoch * abs(curve[-1][1]) / 4), value])
    if test is not None:
        summary = {
            "metrics": test,
            "protocol": {"data": "digits", "images": {"train": 1257, "val": 180, "test": 360}},
            "baselines": {"majority class": {"top1": 0.1}, "logistic regression": {"top1": 0.9667}},
            "versions": {"torch": "2.14.1"},
        }
        (folder / "summary.json").write_text(json.dumps(summary))


def alpha_params(low: float, fill: float, gate: str, lr: float, warmup: float) -> dict[str, Any]:
    """Parameters in the space of `ALPHA`."""
    path = "model.network.alpha_range"
    return {
        f"{path}.low": low,
        f"{path}.fill": fill,
        "model.network.alpha_gate": gate,
        "model.optimizer.lr": lr,
        "model.schedule.warmup": warmup,
    }


def alpha_study(folder: Path, trials: int = 40) -> Study:
    """A sweep as they go: good and bad trials, some pruned, one diverged, one out of memory."""
    random, study = np.random.default_rng(0), make_study(ALPHA)
    for number in range(trials):
        low, fill, warmup = random.uniform(0.5, 4.75), random.uniform(), random.uniform(0, 0.4)
        lr, gate = 10 ** random.uniform(-4, -1), str(random.choice(["tanh", "sigmoid"]))
        params = alpha_params(low, fill, gate, lr, warmup)
        score = 0.97 - 0.08 * (math.log10(lr) + 2.6) ** 2 - 0.02 * (low - 1.5) ** 2 + random.normal(0, 0.01)
        score = float(np.clip(score, 0.1, 0.99))
        curve = [
            (20 * (epoch + 1), score - (score - 0.1) * math.exp(-epoch / 3) + random.normal(0, 0.005))
            for epoch in range(20)
        ]
        curve[-1] = (400, score)
        if number == 7:
            reason = "the loss is nan at step 40; a smaller --model.optimizer.lr may help"
            add(study, folder, params, None, TrialState.FAIL, curve[:2], outcome="diverged", reason=reason)
        elif number == 12:
            add(study, folder, params, None, TrialState.FAIL, outcome="out of memory", reason="CUDA out of memory")
        elif number > 8 and score < 0.85:
            add(study, folder, params, [curve[4][1]], TrialState.PRUNED, curve[:5], outcome="pruned")
        else:
            test = {"test/top1": score - 0.01, "test/top5": 0.999, "test/loss": 0.1}
            add(study, folder, params, [max(v for _, v in curve)], curve=curve, test=test, outcome="finished")
    return study


def loss_study(folder: Path) -> Study:
    """A loss to be minimised, of very different sizes, one of them absurd."""
    random, study = np.random.default_rng(2), make_study({**ALPHA, "title": "loss", "objectives": ["val/loss"]})
    for number in range(12):
        lr = 10 ** random.uniform(-4, -1)
        loss = 1e6 if number == 4 else float(3 + 40 * (math.log10(lr) + 2.5) ** 2)
        curve = [(10 * epoch, loss + 500 * math.exp(-epoch)) for epoch in range(1, 9)]
        params = alpha_params(random.uniform(0.5, 4.75), random.uniform(), "tanh", lr, 0.1)
        add(study, folder, params, [loss], curve=curve, outcome="finished")
    return study


def mechanisms_study(folder: Path) -> Study:
    """Four mechanisms, three seeds each, one trial failed; the scores are in `SCORES`."""
    study = make_study(MECHANISMS)
    for name, scores in SCORES.items():
        for seed, score in enumerate(scores):
            params = {"model.network.attention": name, "seed_everything": seed}
            if score is None:
                add(study, folder, params, None, TrialState.FAIL, outcome="crash", reason="RuntimeError: no")
            else:
                curve = [(20 * epoch, score - 0.5 / epoch**2) for epoch in range(1, 11)]
                add(study, folder, params, [score], curve=curve, test={"test/top1": score - 0.1}, outcome="finished")
    return study


SCORES: dict[str, list[float | None]] = {
    "linear": [0.90, 0.92, 0.94],
    "nala": [0.96, 0.97, 0.98],
    "softmax": [0.95, None, 0.97],
    "relu": [0.93, None, None],
}


def front_study(folder: Path, objectives: tuple[str, ...] = ("val/top1", "parameters"), trials: int = 30) -> Study:
    """Several objectives: accuracy against costs."""
    random = np.random.default_rng(1)
    study = make_study({**ALPHA, "title": "accuracy against size", "objectives": list(objectives)})
    for _ in range(trials):
        params = alpha_params(random.uniform(0.5, 4.75), random.uniform(), "tanh", 10 ** random.uniform(-4, -1), 0.1)
        size = float(10 ** random.uniform(4, 6.5))
        score = float(np.clip(0.6 + 0.06 * (math.log10(size)) + random.normal(0, 0.03), 0, 1))
        costs = {"parameters": round(size), "seconds_per_step": size / 1e6 + 0.01, "gmacs": float(random.uniform())}
        curve = [(10, score - 0.1), (20, score)]
        values = [score, *(costs[name] for name in objectives[1:])]
        add(study, folder, params, values, curve=curve, test={"test/top1": score}, outcome="finished", **costs)
    return study
