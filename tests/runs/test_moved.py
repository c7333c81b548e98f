"""Classes that have moved are found by their old names."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from jsonargparse import dict_to_namespace

from nala_platform import argv
from nala_platform.data.base import DataModule
from nala_platform.experiment import Experiment
from nala_platform.resumption import Resumption
from nala_platform.runs.lock import RunLock
from nala_platform.runs.moved import MOVED, renamed

OLD, NEW = "nala_platform.data.digits.DigitsData", "nala_platform.data.images.digits.DigitsData"


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_each_is_at_its_new_place_alone(old: str, new: str):
    kinds = [kind for kind in vars(import_module(new)).values() if isinstance(kind, type)]
    assert [kind for kind in kinds if issubclass(kind, DataModule) and kind.__module__ == new]
    with pytest.raises(ModuleNotFoundError):
        import_module(old)


@pytest.mark.parametrize("text", [NEW, f"my_{OLD}", "nala_platform.data.text_files", "nala_platform.data.digits"])
def test_what_has_not_moved_stays(text: str):
    assert renamed(text) == text


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The whole configuration that the words mean, after which nothing was noted."""
    with pytest.raises(SystemExit):
        Experiment(argv.expand(["fit", *words, "--print_config"]), RunLock())
    found = capsys.readouterr()
    assert found.err == ""
    return found.out


def test_files_and_words_with_the_old_name_mean_the_new_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    now = printed(["--task", "cls", "--data.batch_size", "7"], capsys)
    assert f"class_path: {NEW}" in now
    old = tmp_path / "old.yaml"
    old.write_text(f"data:\n  class_path: {OLD}\n  init_args:\n    batch_size: 7\n")
    assert printed(["--task", "cls", "--config", str(old)], capsys) == now
    old.write_text(now.replace(NEW, OLD))
    assert printed(["--config", str(old)], capsys) == now  # nothing is dropped from a run's whole file
    assert printed(["--config", str(old), "--data", OLD], capsys) == now
    assert printed(["--config", str(old), f"--data={OLD}"], capsys) == now


def test_an_older_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    now = printed(["--task", "cls"], capsys)
    assert re.search(r"data:\n +class_path: " + re.escape(NEW), now)
    (tmp_path / "config.yaml").write_text(now.replace(NEW, OLD))
    resumption = Resumption(str(tmp_path), None, "")
    resumption.settle(dict_to_namespace(yaml.safe_load(now)), now)
    assert resumption.changes == []
