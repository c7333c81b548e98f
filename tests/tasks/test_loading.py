"""`Task.load_from_checkpoint` from Python alone: a run folder is all that it needs."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from nala_platform.tasks.base import Task
from nala_platform.tasks.classification import ClassificationTask
from nala_platform.tasks.segmentation import SegmentationTask
from torch import nn

from nala_platform import argv
from nala_platform.errors import UserError
from nala_platform.runs.checkpoint_file import DamagedError, save
from nala_platform.trained import _built

TASKS = [task.name for task in argv.tasks()]


def model(name: str) -> dict:
    """The shipped configuration of a task's model."""
    return yaml.safe_load((argv.CONF / f"{name}.yaml").read_text())["model"]


def run_folder(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """A run with a checkpoint of weights that no new model has by chance; the weights."""
    config = {"model": model(name)}
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    task = _built(config, "model", Task, folder / "config.yaml")
    for tensor in (*task.parameters(), *task.buffers()):  # a weight that is tied has two names
        tensor.data = torch.randn_like(tensor) if tensor.is_floating_point() else tensor + 3
    weights = task.state_dict()
    save({"state_dict": weights, "pytorch-lightning_version": "2.6.6"}, folder / "checkpoints" / "best.ckpt", {})
    return weights


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_loaded_from_a_run(name: str, tmp_path: Path):
    """With its weights, its optimizer and its schedule, from the base and from its own class."""
    weights = run_folder(tmp_path, name)
    path = tmp_path / "checkpoints" / "best.ckpt"
    task = Task.load_from_checkpoint(path)
    own = task.state_dict()
    assert own.keys() == weights.keys() and all(torch.equal(own[key], weights[key]) for key in weights)
    described = model(name)
    assert type(task).__name__ == described["class_path"].rpartition(".")[2]
    optimizer = task.make_optimizer([nn.Parameter(torch.zeros(1))])
    assert optimizer.defaults["lr"] == described["init_args"]["optimizer"]["init_args"]["lr"]
    assert task.make_schedule(optimizer, 50).optimizer is optimizer
    assert type(type(task).load_from_checkpoint(str(path), map_location="cpu")) is type(task)


def test_a_fresh_process_loads_it_too(tmp_path: Path):
    weights = run_folder(tmp_path, "cls")
    code = (
        "import sys; from nala_platform.tasks.base import Task; task = Task.load_from_checkpoint(sys.argv[1]);"
        "print(type(task).__name__, sum(p.numel() for p in task.parameters()))"
    )
    command = [sys.executable, "-c", code, "best.ckpt"]
    done = subprocess.run(command, cwd=tmp_path / "checkpoints", check=True, capture_output=True, text=True)
    parameters = ClassificationTask.load_from_checkpoint(tmp_path / "checkpoints" / "best.ckpt").parameters()
    assert done.stdout.split() == ["ClassificationTask", str(sum(p.numel() for p in parameters))] and weights


def test_what_cannot_be_loaded_is_one_line(tmp_path: Path):
    run_folder(tmp_path / "run", "cls")
    path = tmp_path / "run" / "checkpoints" / "best.ckpt"
    with pytest.raises(UserError, match="is of a ClassificationTask, not of a SegmentationTask"):
        SegmentationTask.load_from_checkpoint(path)
    with pytest.raises(UserError, match=r"no checkpoint at nowhere\.ckpt"):
        Task.load_from_checkpoint("nowhere.ckpt")
    config = path.parent.parent / "config.yaml"
    moved = config.rename(tmp_path / "moved.yaml")
    with pytest.raises(UserError, match=r"without the run's config.yaml.*give its path as hparams_file") as caught:
        Task.load_from_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert isinstance(Task.load_from_checkpoint(path, hparams_file=moved), ClassificationTask)
    other = yaml.safe_load(moved.read_text())
    other["model"]["init_args"]["network"]["init_args"]["num_classes"] = 7
    config.write_text(yaml.safe_dump(other))
    with pytest.raises(UserError, match="does not fit the model of"):
        Task.load_from_checkpoint(path)
    config.write_text("trainer: {}\n")
    with pytest.raises(UserError, match=r"describes no model\.network"):
        Task.load_from_checkpoint(path)
    moved.rename(config)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DamagedError, match="is damaged"):
        Task.load_from_checkpoint(path)


def test_the_weights_that_a_run_began_with_need_not_be_there_any_more(tmp_path: Path):
    run_folder(tmp_path, "cls")
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    config["model"]["init_args"]["network"]["init_args"]["checkpoint_path"] = "gone.pth"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    Task.load_from_checkpoint(tmp_path / "checkpoints" / "best.ckpt")


def test_parts_that_are_given_are_taken_as_lightning_does(tmp_path: Path):
    weights = run_folder(tmp_path, "cls")
    (tmp_path / "config.yaml").unlink()
    path = tmp_path / "checkpoints" / "best.ckpt"
    parts = {
        "network": _built({"model": model("cls")}, "model.init_args.network", nn.Module, path),
        "optimizer": lambda groups: torch.optim.SGD(groups, lr=0.1),
        "schedule": lambda made, steps: torch.optim.lr_scheduler.ConstantLR(made),
    }
    task = ClassificationTask.load_from_checkpoint(path, **parts)
    assert torch.equal(task.state_dict()["network.head.bias"], weights["network.head.bias"])
