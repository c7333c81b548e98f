"""best.yaml: what the best trial was given, as `nala fit` takes it."""

from pathlib import Path

import pytest
import yaml
from made import ALPHA, MECHANISMS, add, alpha_params, alpha_study, front_study, make_study
from nala_platform.sweeps.report import config, write_best
from nala_platform.sweeps.results import read_results
from optuna.trial import TrialState

from nala_platform.errors import UserError

LR = 0.00012345678901234567


def best_of(folder: Path, overrides: list[str]) -> str:
    """The text of best.yaml of a study with one trial."""
    study = make_study({**ALPHA, "overrides": overrides})
    add(study, folder, alpha_params(1.0, 0.5, "sigmoid", LR, 0.25), [0.9])
    write_best(study, folder)
    return (folder / "best.yaml").read_text()


def test_it_holds_the_best_trial_to_the_bit(tmp_path: Path):
    study = alpha_study(tmp_path)
    write_best(study, tmp_path)
    results = read_results(study, tmp_path)
    best = max((trial for trial in results.finished), key=lambda trial: trial.values[0])
    values = results.settings(best)
    text = (tmp_path / "best.yaml").read_text()
    assert yaml.safe_load(text) == {
        "model": {
            "network": {
                "alpha_range": values["model.network.alpha_range"],
                "alpha_gate": values["model.network.alpha_gate"],
            },
            "optimizer": {"lr": values["model.optimizer.lr"]},
            "schedule": {"warmup": values["model.schedule.warmup"]},
        }
    }
    assert text.startswith(f"# alpha range, warm-up & learning rate: trial {best.number}, val/top1 0.9681\n# nala fit")


def test_a_small_learning_rate_stays_a_number(tmp_path: Path):
    assert yaml.safe_load(best_of(tmp_path, []))["model"]["optimizer"]["lr"] == LR


def test_overrides_are_in_it(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("trainer:\n  max_epochs: 7\n  log_every_n_steps: 2\nname: x\n")
    words = ["--config", str(tmp_path / "mine.yaml"), "--trainer.max_epochs=3", "--data.batch_size", "16"]
    found = yaml.safe_load(best_of(tmp_path, words))
    assert found["trainer"] == {"max_epochs": 3, "log_every_n_steps": 2}
    assert found["data"] == {"batch_size": 16}
    assert found["model"]["network"]["alpha_range"] == [1.0, 3.125]


def test_a_class_is_spelled_out_where_its_options_are_given(tmp_path: Path):
    words = ["--model.network=nala_platform.models.vision.classifier", "--model.init_args.label_smoothing=0.2"]
    found = yaml.safe_load(best_of(tmp_path, words))["model"]
    assert found["network"] == {
        "class_path": "nala_platform.models.vision.classifier",
        "init_args": {"alpha_range": [1.0, 3.125], "alpha_gate": "sigmoid"},
    }
    assert found["label_smoothing"] == 0.2


def test_values_go_where_a_file_has_spelled_a_class_out(tmp_path: Path):
    network = {"class_path": "nala_platform.models.vision.classifier", "init_args": {"num_classes": 10}}
    model = {"class_path": "a.Task", "init_args": {"network": network}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"model": model}))
    found = yaml.safe_load(best_of(tmp_path, [f"--config={tmp_path / 'mine.yaml'}"]))["model"]["init_args"]
    assert found["network"]["init_args"] == {"num_classes": 10, "alpha_range": [1.0, 3.125], "alpha_gate": "sigmoid"}
    assert found["optimizer"] == {"lr": LR}


def test_a_seed_is_a_setting_like_others(tmp_path: Path):
    study = make_study(MECHANISMS)
    add(study, tmp_path, {"model.network.attention": "relu", "seed_everything": 2}, [0.5])
    results = read_results(study, tmp_path)
    expected = {"seed_everything": 2, "model": {"network": {"attention": "relu"}}}
    assert config(results, results.trials[0]) == expected


def test_with_several_objectives_it_is_the_best_in_the_first(tmp_path: Path):
    study = front_study(tmp_path)
    write_best(study, tmp_path)
    results = read_results(study, tmp_path)
    top = max(trial.values[0] for trial in results.finished)
    equals = [trial for trial in results.finished if trial.values[0] == top]
    best = min(equals, key=lambda trial: trial.values[1])  # 1.000 is reached by several: the smallest of them
    assert len(equals) > 1
    assert f"trial {best.number}," in (tmp_path / "best.yaml").read_text().splitlines()[0]


def test_without_a_finished_trial_there_is_none(tmp_path: Path):
    study = make_study(ALPHA)
    add(study, tmp_path, alpha_params(1.0, 0.5, "tanh", 1e-3, 0.1), None, TrialState.FAIL)
    with pytest.raises(UserError, match="no trial has reached a value"):
        write_best(study, tmp_path)
    assert not (tmp_path / "best.yaml").exists()


def test_nala_fit_runs_it_and_means_the_same_as_the_trial(zygote, tmp_path: Path):
    def fit(*words: str) -> str:
        return zygote.call(tmp_path, "fit", "--task", "cls", *words).stdout

    (tmp_path / "mine.yaml").write_text("model:\n  label_smoothing: 0.2\ntrainer:\n  max_epochs: 1\n")
    overrides = ["--config", str(tmp_path / "mine.yaml"), "--data.batch_size=32", "--model.optimizer=torch.optim.Adam"]
    best_of(tmp_path, overrides)
    study = make_study({**ALPHA, "overrides": overrides})
    add(study, tmp_path, alpha_params(1.0, 0.5, "sigmoid", LR, 0.25), [0.9])
    results = read_results(study, tmp_path)
    typed = fit(*overrides, *results.plan.space.words(results.settings(results.trials[0])), "--print_config")
    best = ["--config", str(tmp_path / "best.yaml")]
    assert fit(*best, "--print_config") == typed
    fit(*best, "--config", "smoke", "--folder", str(tmp_path / "run"))
    config_of_run = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    options = config_of_run["model"]["init_args"]
    assert options["network"]["init_args"]["alpha_range"] == [1.0, 3.125]
    assert options["optimizer"] == {"class_path": "torch.optim.Adam", "init_args": options["optimizer"]["init_args"]}
    assert options["optimizer"]["init_args"]["lr"] == LR
    assert config_of_run["trainer"]["max_epochs"] == 2  # smoke's, which came last
    assert (tmp_path / "run/summary.json").is_file()
