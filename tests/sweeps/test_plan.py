"""The plan of a sweep: read, frozen, compared; and the check by real `nala fit` processes."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml
from nala_platform.sweeps.plan import Objective, Plan, read_plan
from nala_platform.sweeps.study_file import STUDIES
from plans import STUDY, drawn, plan, write

from nala_platform import argv
from nala_platform.errors import UserError

SHIPPED = ["alpha", "alpha_warmup_lr", "attention", "smoke"]


def test_no_shipped_study_is_left_out():
    assert sorted(path.stem for path in STUDIES.glob("*.yaml")) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("task", ["cls", "seg", "sr", "lm"])
def test_a_shipped_study_is_read_for_every_task_and_is_the_same_again_from_its_folder_and_its_storage(name, task):
    found = read_plan(name, options=Namespace(task=task))
    settings = yaml.safe_load((argv.CONF / f"{task}.yaml").read_text())["checkpoint"]
    direction = {"max": "maximize", "min": "minimize"}[settings["mode"]]
    assert found.objectives == (Objective(settings["monitor"], direction, "best"),)
    assert Plan.from_yaml(found.to_yaml()) == found
    assert Plan.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert found.differences(Plan.from_yaml(found.to_yaml())) == []


def test_what_is_typed_beats_the_file_and_comes_behind_its_words(tmp_path: Path):
    path = write(tmp_path, yaml.safe_dump({**STUDY, "overrides": ["--config", "smoke"], "seed": 3}))
    options = Namespace(task="lm", n_trials=7, seed=None, devices_per_trial=2, trial_timeout=1.5, workers=9)
    found = read_plan(path, ["--trainer.max_epochs", "1"], options)
    assert (found.task, found.n_trials, found.seed, found.devices_per_trial) == ("lm", 7, 3, 2)
    assert found.trial_timeout_s == 1.5 and found.max_retries == 3 and found.stop_timeout_s == 60
    assert found.overrides == ("--config", "smoke", "--trainer.max_epochs", "1")
    assert found.title == "my"


def test_paths_are_absolute_for_a_sweep_that_goes_on_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smoke").mkdir()  # a folder is no config file
    (tmp_path / "own.yaml").write_text("trainer: {max_epochs: 1}")
    words = ["--config", "smoke", "--config=own.yaml", "--data.root", "smoke", "--data.source.cache_dir=smoke",
             "--model.network.attention", "smoke"]  # fmt: skip
    assert plan(overrides=words).overrides == (
        *("--config", "smoke", f"--config={tmp_path}/own.yaml", "--data.root", f"{tmp_path}/smoke"),
        *(f"--data.source.cache_dir={tmp_path}/smoke", "--model.network.attention", "smoke"),
    )


@pytest.mark.parametrize(
    ("task", "overrides", "expected"),
    [
        ("cls", (), ("val/top1", "maximize")),
        ("lm", (), ("val/perplexity", "minimize")),
        ("cls", ("--checkpoint.monitor=val/loss", "--checkpoint.mode", "min"), ("val/loss", "minimize")),
        ("cls", ("--config", "own.yaml"), ("val/top5", "maximize")),
    ],
)
def test_the_default_objective_is_what_the_best_checkpoint_is_chosen_by(
    task, overrides, expected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text("checkpoint: {monitor: val/top5}")
    assert plan(task=task, overrides=list(overrides)).objectives == (Objective(*expected, "best"),)


def test_the_best_checkpoint_of_a_trial_is_chosen_by_the_objective():
    found = plan(objectives=[{"metric": "val/top5", "direction": "max"}], overrides=["--config", "smoke"])
    assert found.overrides == ("--config", "smoke", "--checkpoint.monitor=val/top5", "--checkpoint.mode=max")
    assert Plan.from_yaml(found.to_yaml()) == found
    told = ["--checkpoint.monitor", "val/loss"]
    assert plan(objectives=[{"metric": "val/top5", "direction": "max"}], overrides=told).overrides == tuple(told)
    assert plan(objectives=["val/top1", "parameters"]).overrides == plan(objectives=["gmacs"]).overrides == ()


@pytest.mark.parametrize(
    ("objective", "typed", "added"),
    [
        ({"metric": "val/top1", "direction": "minimize"}, [], ["--checkpoint.mode=min"]),
        ({"metric": "val/top1", "direction": "minimize", "value": "last"}, [], ["--checkpoint.mode=min"]),
        ({"metric": "val/top1", "direction": "maximize"}, [], []),
        ({"metric": "val/loss"}, [], ["--checkpoint.monitor=val/loss", "--checkpoint.mode=min"]),
        ("val/loss", ["--checkpoint.monitor=val/loss"], ["--checkpoint.mode=min"]),
        (None, ["--checkpoint.monitor", "val/loss"], ["--checkpoint.mode=min"]),
        ({"metric": "val/top5", "direction": "max"}, ["--checkpoint.mode=max"], ["--checkpoint.monitor=val/top5"]),
        ({"metric": "val/top1", "direction": "min"}, ["--checkpoint.mode=min"], []),
        (["parameters"], [], []),
        ([{"metric": "val/top1", "direction": "min"}, "gmacs"], [], ["--checkpoint.mode=min"]),
    ],
)
def test_the_best_checkpoint_follows_the_direction_of_the_first_objective(objective, typed, added, tmp_path: Path):
    found = plan(objectives=objective, overrides=typed)
    assert found.overrides == (*typed, *added)
    assert Plan.from_yaml(found.to_yaml()) == found
    path = write(tmp_path, yaml.safe_dump({**STUDY, "objectives": objective, "overrides": typed}))
    assert read_plan(path).overrides == found.overrides


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"objectives": {"metric": "val/top1", "direction": "min"}, "overrides": ["--checkpoint.mode=max"]},
            "my.yaml: the objective is to minimize val/top1, but --checkpoint.mode max keeps the worst checkpoint of "
            "each trial by it: leave --checkpoint.mode away, or make it min",
        ),
        (
            {"space": {"checkpoint.mode": {"categorical": ["min", "max"]}}},
            "my.yaml: space.checkpoint.mode: the first objective decides which checkpoint is best: take it out",
        ),
    ],
)
def test_a_study_whose_trials_would_keep_the_worst_checkpoint_is_refused(settings, message: str, tmp_path: Path):
    path = write(tmp_path, yaml.safe_dump({**STUDY, **settings}))
    with pytest.raises(UserError) as raised:
        read_plan(path)
    assert str(raised.value).replace(str(tmp_path) + "/", "") == message
    assert Plan.from_dict({**STUDY, **settings}).n_trials == 5  # one that has begun can still be looked at


def test_what_may_change_and_what_not():
    """S9."""
    found = plan()
    free = {"n_trials": 50, "trial_timeout_s": 5, "max_retries": 0, "devices_per_trial": 1, "title": "x", "seed": 4,
            "stop_timeout_s": 7, "sampler": "RandomSampler", "pruner": None}  # fmt: skip
    assert found.differences(plan(**free)) == []
    assert found.differences(plan(task="lm", overrides=["--config", "smoke"])) == [
        "task: cls in the sweep, lm was asked for",
        "overrides: nothing in the sweep, --config smoke was asked for",
        "objectives: [{metric: val/top1, direction: maximize, value: best}] in the sweep, "
        "[{metric: val/perplexity, direction: minimize, value: best}] was asked for",
    ]
    wider = {"model.optimizer.lr": {"float": {"low": 1e-5, "high": 1e-2, "log": True}}}
    assert len(found.differences(plan(space=wider))) == 1
    grid = {"sampler": "GridSampler", "space": {"seed_everything": {"categorical": [0, 1, 2, 3, 4]}}}
    assert plan(**grid).differences(plan(**grid, seed=1)) == ["seed: 0 in the sweep, 1 was asked for"]
    assert plan(**grid).differences(plan(**grid, n_trials=3)) == []


def test_another_number_of_trials():
    assert plan().with_trials(50).n_trials == 50 and plan().differences(plan().with_trials(50)) == []
    limits = plan().with_limits(None, 5, 2.5)
    assert (limits.n_trials, limits.trial_timeout_s, limits.stop_timeout_s) == (5, 5, 2.5)
    assert limits.with_limits(7, None, None) == plan(n_trials=7, trial_timeout_s=5, stop_timeout_s=2.5)
    with pytest.raises(UserError, match="stop_timeout_s must be above 0, got 0"):
        plan().with_limits(None, None, 0)
    with pytest.raises(UserError, match="n_trials: 13, but the grid has 12 points"):
        read_plan("attention").with_trials(13)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trials": 3}, "my.yaml: a study has no 'trials'; did you mean 'n_trials'?"),
        ({"task": None}, "my.yaml names no task: add --task NAME (cls, lm, seg, sr)"),
        ({"task": "sge"}, "no task 'sge'; did you mean 'seg'?"),
        ({"n_trials": None}, "names no number of trials"),
        ({"n_trials": 0}, "n_trials must be above 0, got 0"),
        ({"n_trials": "many"}, "n_trials needs a whole number, got 'many'"),
        ({"seed": -1}, "seed must be 0 or more, got -1"),
        ({"trial_timeout_s": 0}, "trial_timeout_s must be above 0"),
        ({"stop_timeout_s": 0}, "stop_timeout_s must be above 0"),
        ({"overrides": {"trainer.max_epochs": 3}}, "overrides is a list of words as typed"),
        ({"overrides": ["--folder", "x"]}, "--folder cannot go to the trials of a sweep"),
        (
            {"overrides": ["--model.optimizer.lr=1"]},
            "the sweep searches model.optimizer.lr: leave --model.optimizer.lr",
        ),
        ({"overrides": ["--config", "nowhere"]}, "no config file 'nowhere'"),
        ({"objectives": []}, "objectives needs metrics, each once"),
        ({"objectives": ["val/top1", "val/top1"]}, "objectives needs metrics, each once"),
        ({"objectives": "test/top1"}, "would choose by the part that judges: use val/top1"),
        ({"objectives": "parameter"}, "no metric 'parameter'; did you mean 'parameters'?"),
        ({"objectives": "val/ece"}, "val/ece needs direction: maximize or minimize"),
        ({"objectives": {"metric": "val/top1", "direction": "up"}}, "direction is maximize or minimize"),
        ({"objectives": {"metric": "val/top1", "when": "last"}}, "an objective has no 'when'"),
        ({"objectives": ["parameters", "val/top1"]}, "val/top1 must be the first, and the only one of its kind"),
        ({"objectives": [3]}, "3 is no objective"),
        ({"objectives": ["val/top1", "parameters"], "pruner": "MedianPruner"}, "one objective that is a val/… metric"),
        ({"sampler": "TPESamplr"}, "sampler: optuna.samplers.TPESamplr is no BaseSampler; did you mean 'TPESampler'?"),
        ({"sampler": "no.such.Sampler"}, "sampler: no class 'no.such.Sampler'"),
        ({"sampler": "pathlib.Path"}, "sampler: pathlib.Path is no BaseSampler"),
        ({"sampler": 3}, "sampler needs a class path"),
        ({"sampler": {"class_path": "TPESampler", "n_startup_trials": 3}}, "options stand below init_args:"),
        (
            {"sampler": {"class_path": "TPESampler", "init_args": {"n_startup_trial": 3}}},
            "TPESampler has no option 'n_startup_trial'; did you mean 'n_startup_trials'?",
        ),
        ({"sampler": {"class_path": "RandomSampler", "init_args": {"seed": 3}}}, "seed is the sweep's own"),
        ({"pruner": {"class_path": "HyperbandPruner", "init_args": {"max_resource": "x"}}}, "cannot be built"),
        ({"sampler": "GridSampler"}, "model.optimizer.lr: a grid needs a step"),
        (
            {"sampler": "GridSampler", "n_trials": 5, "space": {"seed_everything": {"categorical": [1, 2]}}},
            "n_trials: 5, but the grid has 2 points",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_it(settings, message: str, tmp_path: Path):
    path = write(tmp_path, yaml.safe_dump({**STUDY, **settings}))
    with pytest.raises(UserError) as raised:
        read_plan(path)
    text = str(raised.value).replace(str(tmp_path) + "/", "")
    assert message in text and "\n" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("space: [", "line 1: not valid YAML"),
        ("a: 1\nspace: {b: {int: {low: 0}},\n  b: {int: {low: 0}}}", "line 3: not valid YAML: b stands twice"),
        ("- a", "holds no keys"),
        ("", "holds no keys"),
    ],
)  # fmt: skip
def test_what_is_no_study(text: str, message: str, tmp_path: Path):
    with pytest.raises(UserError, match=message):
        read_plan(write(tmp_path, text))


def test_a_study_that_is_not_there_or_is_no_text(tmp_path: Path):
    with pytest.raises(UserError, match="no study 'alhpa'; did you mean 'alpha'"):
        read_plan("alhpa")
    (tmp_path / "my.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is no text"):
        read_plan(str(tmp_path / "my.yaml"))


def leaf(config: dict[str, Any], path: str) -> Any:
    for part in path.split("."):
        config = config[part] if part in config else config["init_args"][part]
    return config


def test_a_run_s_config_holds_what_the_space_gave(zygote, tmp_path: Path):
    """C4: a real process reads the words, and each value is the one that was drawn, in kind too."""
    space = {
        "model.network.alpha_range": {"range": {"low": 0.5, "high": 5.0, "min_width": 0.25}},
        "model.network.alpha_gate": {"categorical": ["sigmoid"]},
        "model.network.direction": {"categorical": [None]},
        "model.network.stage_attention": {"categorical": [["nala", "nala", "nala", "softmax"]]},
        "model.network.learn_alpha": {"categorical": [True]},
        "model.optimizer": {"categorical": ["torch.optim.SGD"]},
        "model.optimizer.momentum": {
            "float": {"low": 0.0, "high": 0.9},
            "when": {"model.optimizer": "torch.optim.SGD"},
        },
        "model.optimizer.lr": {"float": {"low": "1e-6", "high": "1e-5", "log": True}},
        "model.schedule.warmup": {"int": {"low": 2, "high": 4}},
        "seed_everything": {"categorical": [7]},
    }
    found = plan(space=space, overrides=["--config", "smoke"])
    values = drawn(found, 0)
    assert values.keys() == space.keys()
    words = ["fit", "--task", found.task, *found.overrides, *found.space.words(values), "--print_config"]
    config = yaml.safe_load(zygote.call(tmp_path, *words).stdout)
    for path, value in values.items():
        read = leaf(config, path)
        read = read["class_path"] if isinstance(read, dict) else read
        assert read == value and type(read) is type(value), path


def test_a_key_that_the_task_lacks_stops_the_sweep_before_its_first_trial():
    rate = {"float": {"low": 1e-4, "high": 1e-2}}
    lines = {
        "model.network.attention": {"categorical": ["nala"]},
        "model.network.alpha_rage": {"range": {"low": 1, "high": 2}, "when": {"model.network.attention": "nala"}},
        "model.optimizer.lr": rate,
    }
    with pytest.raises(UserError) as raised:
        plan(task="lm", space=lines).check()
    assert str(raised.value) == (
        "the study does not fit the task lm: no key --model.network.alpha_rage; did you mean 'alpha_range'?"
    )


@pytest.mark.campaign
@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("task", ["cls", "seg", "sr", "lm"])
def test_every_shipped_study_fits_every_task(name: str, task: str):
    read_plan(name, options=Namespace(task=task)).check()


def test_reading_a_plan_loads_no_torch():
    code = (
        "import sys; from nala_platform.sweeps.plan import read_plan; read_plan('alpha'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout == "False\n", done.stderr
