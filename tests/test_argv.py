"""What is typed, and what LightningCLI gets to see."""

from pathlib import Path

import pytest

from nala_platform import argv
from nala_platform.errors import UserError

BASE, SEG = str(argv.CONF / "base.yaml"), str(argv.CONF / "seg.yaml")


def test_a_task_is_its_files_and_typed_flags_come_last():
    words = argv.expand(["fit", "--trainer.max_epochs", "3", "--task", "seg"])
    assert words == ["fit", "--config", BASE, "--config", SEG, "--trainer.max_epochs", "3", "--task", "seg"]


@pytest.mark.parametrize("flag", [["--config", "{f}"], ["-c", "{f}"], ["--config={f}"]])
@pytest.mark.parametrize("early", [True, False])
def test_the_place_of_a_config_file_does_not_change_its_meaning(tmp_path: Path, flag: list[str], early: bool):
    """C2: a later file never beats a typed flag."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("trainer:\n  max_epochs: 7\n")
    given = [part.format(f=mine) for part in flag]
    typed = ["--task=seg", "--trainer.max_epochs=3"]
    words = argv.expand(["fit", *(given + typed if early else typed + given)])
    assert words == ["fit", *("--config", BASE, "--config", SEG, "--config", str(mine)), "--task", "seg", typed[1]]


def test_a_shipped_overlay_is_named_without_its_path():
    assert argv.conf_file("smoke") == argv.CONF / "smoke.yaml"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "--task", "sge"], r"no task 'sge'; did you mean 'seg'\?"),
        (["fit"], r"needs --task NAME \(cls, "),
        (["fit", "--task"], "--task needs a value"),
        (["fit", "--task", "seg", "--config", "smoek"], r"no config file 'smoek'; did you mean 'smoke'\?"),
        (["fit", "seg"], "does not know what to do with 'seg'"),
        (["test", "runs/none"], "no run at runs/none"),
    ],
)
def test_a_mistake_is_named_with_its_mend(words: list[str], message: str):
    with pytest.raises(UserError, match=message):
        argv.expand(words)


def test_a_run_brings_its_config_and_best_checkpoint(tmp_path: Path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").write_text("task: seg\n")
    best, last = tmp_path / "checkpoints" / "best.ckpt", tmp_path / "checkpoints" / "last.ckpt"
    last.touch()
    config = ["--config", str(tmp_path / "config.yaml")]
    assert argv.expand(["test", str(tmp_path)]) == ["test", *config, "--ckpt_path", str(last)]
    best.touch()
    assert argv.expand(["test", str(tmp_path)]) == ["test", *config, "--ckpt_path", str(best)]
    assert argv.expand(["test", str(last)]) == ["test", *config, "--ckpt_path", str(last)]
    assert argv.expand(["test", str(tmp_path), "--ckpt_path=x.ckpt"]) == ["test", *config, "--ckpt_path=x.ckpt"]


def test_broken_yaml_names_its_file_and_line(tmp_path: Path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("trainer:\n  max_epochs: 4\n bad\n")
    with pytest.raises(UserError, match=r"broken\.yaml, line 3"):
        argv.expand(["fit", "--task", "seg", "--config", str(broken)])


def test_the_tasks_and_their_defaults_are_read_from_conf():
    rows = {task.name: task for task in argv.tasks()}
    assert rows["seg"].data == "BlueMarbleData"
    assert rows["seg"].metric == "val/miou"
    assert rows["cls"].title == "classification"
