"""The experiment that users make with their own configuration finds a difference where there is one."""

import copy
from pathlib import Path

import pytest
import torch

from nala_platform.verify import difference, differences


def write(run: Path, checkpoint: dict, log: str) -> None:
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    for name in ("last.ckpt", "best.ckpt"):
        torch.save(checkpoint, run / "checkpoints" / name)
    (run / "metrics.csv").write_text(log)


def test_one_bit_is_a_difference_and_is_named(tmp_path: Path):
    whole = {"state_dict": {"a": torch.tensor([1.0, float("nan")])}, "lr_schedulers": [{"last_epoch": 3}], "rng": [1]}
    log = "step,val/loss\n1,0.5\n"
    write(tmp_path / "one", whole, log)
    write(tmp_path / "other", whole, log)
    assert differences(tmp_path / "one", tmp_path / "other") == []
    other = copy.deepcopy(whole)
    other["state_dict"]["a"][0] += 1e-7
    write(tmp_path / "other", other, "step,val/loss\n1,0.25\n")
    assert differences(tmp_path / "one", tmp_path / "other") == [
        "last.ckpt: /state_dict/a: tensors differ",
        "best.ckpt: /state_dict/a: tensors differ",
        "metrics.csv: /0/val/loss: 0.5 and 0.25",
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"b": 1}),
        ([1], [1, 2]),
        (1, True),
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.tensor([0.0, float("nan")])),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    ],
)
def test_every_kind_of_difference_counts(one, other):
    assert difference(one, other) is not None and difference(one, copy.deepcopy(one)) is None


def test_a_run_that_cannot_be_made_is_one_line(zygote, tmp_path: Path):
    said = zygote.call(tmp_path, "verify-resume", "--task", "cls", "--model.optimizer.lrr", "1", code=2).stderr
    assert said.count("\n") == 1 and "exit code 2" in said and "lrr" in said


FORGETFUL = '''
import torch
from nala_platform.data.images.digits import DigitsData

class Forgetful(DigitsData):
    """Shifts images by a generator of its own, which no checkpoint knows."""
    def __init__(self, batch_size: int = 8):
        super().__init__(batch_size=batch_size)
        self.generator = torch.Generator().manual_seed(0)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        batch["image"] = batch["image"] + torch.randn(1, generator=self.generator)
        return batch
'''


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
def test_a_run_is_verified_and_one_with_a_hidden_state_is_not(exact: bool, zygote, tmp_path: Path):
    (tmp_path / "own.py").write_text(FORGETFUL)
    # The forgetful one is killed early in more steps: behind its last step only the test would tell the difference.
    early = ["--kills", "1", "--seed", "1", "--trainer.limit_train_batches", "12"]
    words = ["--kills", "2", "--data.batch_size", "8"] if exact else [*early, "--data", "own.Forgetful"]
    done = zygote.call(tmp_path, "verify-resume", "--task", "cls", *words, code=0 if exact else 1)
    assert ("equal to the bit" in done.stdout) == exact
    assert ("last.ckpt: /" in done.stdout) == (not exact)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["own.py"]
