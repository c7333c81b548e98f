"""A mistake on the command line or in a file is one line that names the key, the value and the mend."""

from pathlib import Path

import pytest
import yaml

from nala_platform import argv
from nala_platform.errors import UserError
from nala_platform.experiment import Experiment, run
from nala_platform.parse_errors import explain, keys_under
from nala_platform.runs.lock import RunLock


def parse_error(*words: str) -> str:
    with pytest.raises(UserError) as caught:
        Experiment(argv.expand(["fit", *words]), RunLock())
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trainer.max_epoch", "3"], "no key --trainer.max_epoch; did you mean 'max_epochs'?"),
        (["--trianer.max_epochs", "3"], "no key --trianer; did you mean 'trainer'?"),
        (["--model.optimzer.lr", "3"], "no key --model.optimzer; did you mean 'optimizer'?"),
        (["--model.network.atention", "nala"], "no key --model.network.atention; did you mean 'attention'?"),
        (["--model.optimizer.lr", "abc"], "model.optimizer.lr: expected float, got 'abc'"),
        (["--trainer.max_epochs", "two"], "trainer.max_epochs: expected int, got 'two'"),
        (["--data.batch_sise", "3"], "no key --data.batch_sise; did you mean 'batch_size'?"),
        (["--data", "nala_platform.data.images.digits.Digit"], "data: cannot use 'nala_platform.data.images.digits."),
        (["--data", "NoSuchData"], "data: no class 'NoSuchData': write its whole path"),
        (["--model.network", "Segmentr"], "model.network: no class 'Segmentr': write its whole path"),
        (["--config", "ade20k"], "--data.root must be given: there is no default"),
        (["--trainer.num_nodes", "many"], "trainer.num_nodes: expected int, got 'many'"),
        (["--checkpoint.mode", "mx"], "checkpoint.mode: expected Literal['min', 'max'], got 'mx'; did you mean 'max'?"),
        (["--report.metrics", "3"], "report.metrics: expected list, got 3"),
        (["--trainer.precision", "bf16-mixd"], "trainer.precision: expected "),
        (["--model.optimizer.betas", "[1]"], "model.optimizer.betas: expected tuple with 2 elements, got [1]"),
        (["--model.optimizer.betas", "[a,b]"], "model.optimizer.betas: expected float, got ['a', 'b']"),
        (
            ["--model.optimizer", "Adamm"],
            "model.optimizer: no class 'Adamm': write its whole path, such as timm.optim.",
        ),
        (
            ["--model.network", "[]"],
            "model.network: cannot use []: write the path of a class, such as nala_platform.mo",
        ),
        (
            ["--trainer.logger", "CSVLoger"],
            "trainer.logger: no class 'CSVLoger': write its whole path, such as lightni",
        ),
        (
            ["--trainer.callbacks+", "LearningRateMonitor", "--trainer.callbacks.logging_interval", "never"],
            "trainer.callbacks.logging_interval: expected Literal['step', 'epoch'], got 'never'",
        ),
        (["--trainer.callbacks+", "EarlyStopping"], "--trainer.callbacks.monitor must be given: there is no default"),
        (["--trainer.max_epochs"], "--trainer.max_epochs needs a value"),
        (["more"], "nothing can be done with 'more': keys begin with --"),
        (["--trainer", "3"], "trainer: cannot use 3: it has keys below it"),
        (["--data", "null"], "data is null, so there is nothing to train on"),
        (["--seed_everything", "-1"], "seed_everything is -1: it must be from 0 to 4294967295"),
        (["--model.schedule.warm_up", "3"], "no key --model.schedule.warm_up; did you mean 'warmup'?"),
    ],
)
def test_typed(words: list[str], message: str):
    assert parse_error("--task", "seg", *words).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data:\n  init_args:\n    batch_size: many\n", "data.batch_size: expected int, got 'many'"),
        ("model:\n  init_args:\n    network:\n      init_args:\n        wdith: 4\n", "no key --model.network.wdith"),
        ("trianer:\n  max_epochs: 4\n", "no key --trianer; did you mean 'trainer'?"),
    ],
)
def test_in_a_file(tmp_path: Path, text: str, message: str):
    mine = tmp_path / "mine.yaml"
    mine.write_text(text)
    assert parse_error("--task", "seg", "--config", str(mine)).startswith(message)


def test_a_schedule_that_would_take_the_steps_for_another_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    words = ["fit", "--task", "cls", "--model.schedule", "torch.optim.lr_scheduler.ConstantLR"]
    with pytest.raises(UserError, match=r"^model\.schedule: ConstantLR takes factor where ") as caught:
        run(argv.expand(words))
    assert "\n" not in str(caught.value) and not [*tmp_path.iterdir()]


STEPS = " where it is given the number of steps of the run: name nala_platform.optim.WarmupCosine or WarmupPoly, "


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ReduceLROnPlateau"], "ReduceLROnPlateau takes mode"),
        (
            ["torch.optim.lr_scheduler.ReduceLROnPlateau", "--model.schedule.mode", "min"],
            "ReduceLROnPlateau takes mode",
        ),
        (["StepLR", "--model.schedule.step_size", "3"], "StepLR takes step_size"),
        (["OneCycleLR", "--model.schedule.max_lr", "0.1"], "OneCycleLR takes max_lr"),
        (["MultiStepLR", "--model.schedule.milestones", "[1]"], "MultiStepLR takes milestones"),
    ],
)
def test_a_schedule_that_cannot_be_used_is_explained_whatever_its_options(words: list[str], said: str):
    assert parse_error("--task", "cls", "--model.schedule", *words).startswith(f"model.schedule: {said}{STEPS}")


def test_a_schedule_that_is_a_function_is_explained():
    text = parse_error("--task", "cls", "--model.schedule", "get_cosine_schedule_with_warmup")
    assert text.startswith("model.schedule: get_cosine_schedule_with_warmup is no class: name nala_platform.optim.")


def test_the_nearest_of_a_key_s_names_is_told():
    text = parse_error("--task", "cls", "--trainer.precision", "bf16-mixd")
    assert text.endswith("got 'bf16-mixd'; did you mean 'bf16-mixed'?")
    text = parse_error("--task", "cls", "--model.optimizer", "Adamm")
    assert text.endswith("; did you mean 'Adam'?")


def test_a_message_of_another_shape_is_cut():
    text = explain('Parser key "trainer.x":\n' + "\n  - some reason" * 40, ["fit"])
    assert text.startswith("trainer.x: ") and len(text) < 250 and "\n" not in text


def test_inside_a_group_of_settings():
    text = parse_error("--task", "seg", "--config", "mask_folder", "--data.root", "x", "--data.labels.num_clases", "3")
    assert text == "no key --data.labels.num_clases; did you mean 'num_classes'?"


def test_what_is_not_understood_is_passed_on_whole_on_one_line():
    assert explain("something\n  new", ["fit"]) == "something new"


def test_a_changed_class_path_lists_the_keys_it_drops(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """C1."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("model:\n  init_args:\n    optimizer:\n      init_args:\n        amsgrad: true\n")
    with pytest.raises(SystemExit):
        words = ["--config", str(mine), "--model.optimizer", "torch.optim.SGD", "--model.optimizer.lr", "1e-3"]
        Experiment(argv.expand(["fit", "--task", "seg", *words, "--print_config"]), RunLock())
    printed = capsys.readouterr()
    assert "torch.optim.SGD instead of torch.optim.AdamW drops {'amsgrad': True}" in printed.err
    assert "lr: 0.001" in printed.out


@pytest.mark.parametrize("text", ["1e-3", "1.0e-3", "0.001"])
def test_a_number_in_scientific_notation_is_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str):
    """C4: plain YAML takes 1e-3 for a string."""
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"model:\n  init_args:\n    optimizer:\n      init_args:\n        lr: {text}\n")
    with pytest.raises(SystemExit):
        Experiment(argv.expand(["fit", "--task", "seg", "--config", str(mine), "--print_config"]), RunLock())
    assert "lr: 0.001\n" in capsys.readouterr().out


def test_near_matches_come_from_the_parser_s_own_keys(zygote, tmp_path: Path):
    printed = zygote.call(tmp_path, "fit", "--task", "cls", "--print_config").stdout
    assert {*yaml.safe_load(printed), "config", "print_config"} == set(keys_under("", []))
    assert "did you mean 'resume'?" in zygote.call(tmp_path, "fit", "--task", "cls", "--resum", "x", code=2).stderr
