"""What watches a run: the log, the checkpoints, the average, the curves."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from nala_platform.callbacks.checkpoint import RunCheckpoint
from nala_platform.callbacks.csv_log import CSVLog
from nala_platform.callbacks.curves import draw_curves
from nala_platform.callbacks.ema import EMA
from nala_platform.callbacks.pictures import colourise, displayable
from nala_platform.errors import StorageError, UserError


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_log_has_one_row_a_step_and_widens(tmp_path: Path):
    log = CSVLog(tmp_path)
    log.log_metrics({"train/loss": 1.5, "epoch": 0}, step=9)
    log.log_metrics({"train/loss": 1.25, "epoch": 0}, step=19)
    assert rows(tmp_path / "metrics.csv") == [{"step": "9", "epoch": "0", "train/loss": "1.5"}]
    log.log_metrics({"val/miou": 0.5, "epoch": 0}, step=19)
    log.save()
    log.log_metrics({"lr": 0.1}, step=19)
    log.log_metrics({"train/loss": float("nan"), "epoch": 1}, step=29)
    log.finalize("success")
    table = rows(tmp_path / "metrics.csv")
    assert [row["step"] for row in table] == ["9", "19", "29"]
    assert table[1] == {"step": "19", "epoch": "0", "train/loss": "1.25", "val/miou": "0.5", "lr": "0.1"}
    assert table[0]["val/miou"] == "" and table[2]["train/loss"] == "nan"


def test_curves_are_a_picture_of_the_log(tmp_path: Path):
    log = CSVLog(tmp_path)
    for step in range(5):
        log.log_metrics({"train/loss_step": 1.0 / (step + 1), "lr": 0.1, "val/miou": 0.1 * step, "epoch": 0}, step=step)
    log.finalize("success")
    draw_curves(tmp_path / "metrics.csv", tmp_path / "curves.png", ["val/miou"])
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.width > 1000 and len(set(picture.convert("RGB").getdata())) > 20


class Line(LightningModule):
    """One weight, trained by a known gradient, so that every average can be worked out by hand."""

    def __init__(self, scores: list[float]) -> None:
        super().__init__()
        self.network = torch.nn.Linear(1, 1, bias=False)
        self.network.register_buffer("counter", torch.zeros((), dtype=torch.int64))
        torch.nn.init.zeros_(self.network.weight)
        self.values = scores
        self.history: list[float] = []
        self.tested: list[float] = []

    def training_step(self, batch, batch_idx):
        self.network.counter += 1
        return -self.network.weight.sum()  # plain SGD at rate 1 adds 1 a step

    def on_train_batch_end(self, *_):
        self.history.append(float(self.network.weight))

    def validation_step(self, batch, batch_idx):
        self.log("val/score", self.values[self.current_epoch], on_epoch=True)

    def test_step(self, batch, batch_idx):
        self.tested.append(float(self.network.weight))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Ones(LightningDataModule):
    def loader(self):
        return DataLoader(TensorDataset(torch.ones(3, 1)))

    train_dataloader = val_dataloader = test_dataloader = loader


def fit(folder: Path, scores: list[float], *callbacks: Callback, **options) -> tuple[Line, Trainer]:
    model = Line(scores)
    trainer = Trainer(
        default_root_dir=folder,
        max_epochs=len(scores),
        **options,
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(model, Ones())
    return model, trainer


def load(path: Path) -> dict:
    return torch.load(path, weights_only=True)  # R13: plain types only


@pytest.mark.parametrize(("mode", "best"), [("max", 1), ("min", 2)])
def test_last_is_the_latest_and_best_the_best(tmp_path: Path, mode: str, best: int):
    """R11."""
    fit(tmp_path, [0.5, 0.9, 0.2, 0.7, float("nan")], RunCheckpoint("val/score", mode))
    folder = tmp_path / "checkpoints"
    names = ["best.ckpt", "last.ckpt", "model.safetensors", "previous.ckpt"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert load(folder / "last.ckpt")["global_step"] == 15
    assert load(folder / "previous.ckpt")["global_step"] == 12
    assert load(folder / "best.ckpt")["global_step"] == 3 * (best + 1)
    weights = load(folder / "best.ckpt")["state_dict"]["network.weight"]
    from safetensors.torch import load_file

    assert torch.equal(load_file(folder / "model.safetensors")["weight"], weights)


@pytest.mark.parametrize(
    ("options", "steps", "best"),
    [
        ({"max_steps": 4}, 4, 3),
        ({"val_check_interval": 2}, 9, 2),
        ({"check_val_every_n_epoch": 2}, 9, 6),
        ({"limit_val_batches": 0}, 9, 9),
        ({"max_steps": 2}, 2, 2),
    ],
)
def test_what_comes_after_the_last_validation_is_saved_too(tmp_path: Path, options: dict, steps: int, best: int):
    """R11: three steps an epoch, three epochs; the first score is the best there is."""
    fit(tmp_path, [0.9, 0.5, 0.5], RunCheckpoint("val/score", "max"), **options)
    last, first = (load(tmp_path / "checkpoints" / name) for name in ("last.ckpt", "best.ckpt"))
    assert last["global_step"] == steps == float(last["state_dict"]["network.weight"])
    assert first["global_step"] == (best if "check_val_every_n_epoch" not in options else 6)


def test_scores_that_are_all_nan_leave_the_last_state_as_the_best(tmp_path: Path):
    fit(tmp_path, [float("nan")] * 2, RunCheckpoint("val/score", "max"))
    assert load(tmp_path / "checkpoints" / "best.ckpt")["global_step"] == 6


def test_a_monitor_that_nobody_logs_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"'val/miuo' is not logged; validation logs val/score"):
        fit(tmp_path, [0.1], RunCheckpoint("val/miuo", "max"))


def test_the_average_is_saved_and_tested_and_training_goes_on_from_the_plain_weights(tmp_path: Path):
    model, trainer = fit(tmp_path, [0.1, 0.2], RunCheckpoint("val/score", "max"), EMA(0.5))
    assert model.history == [1, 2, 3, 4, 5, 6]
    average = 1.0
    for count, weight in enumerate(model.history[1:], start=1):
        decay = min(0.5, (1 + count) / (10 + count))
        average = decay * average + (1 - decay) * weight
    saved = load(tmp_path / "checkpoints" / "best.ckpt")
    assert float(saved["state_dict"]["network.weight"]) == pytest.approx(average)
    assert float(saved["current_model_state"]["network.weight"]) == 6.0
    assert int(saved["state_dict"]["network.counter"]) == 6
    trainer.test(model, Ones(), ckpt_path=str(tmp_path / "checkpoints" / "best.ckpt"), verbose=False)
    assert model.tested == [pytest.approx(average)] * 3


def test_a_decay_out_of_range_is_refused():
    with pytest.raises(UserError, match=r"ema.decay must be in \(0, 1\)"):
        EMA(1.0)


def test_pictures_show_the_pixels_and_colours_that_went_in():
    pixels = torch.tensor([[[0, 255]], [[128, 3]], [[7, 64]]], dtype=torch.float32)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    normal = (pixels / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert displayable(normal, mean, std).tolist() == [[[0, 128, 7], [255, 3, 64]]]
    import numpy as np

    mask = np.array([[0, 1, 255]])
    assert colourise(mask, ((1, 2, 3), (4, 5, 6))).tolist() == [[[1, 2, 3], [4, 5, 6], [0, 0, 0]]]
    assert colourise(mask, ((0, 0, 0), (4, 5, 6))).tolist() == [[[0, 0, 0], [4, 5, 6], [255, 255, 255]]]


def test_every_epoch_has_its_line(capsys: pytest.CaptureFixture[str]):
    from nala_platform.callbacks.progress import EpochLines

    lines = EpochLines("val/miou")
    metrics = {"train/loss_epoch": torch.tensor(0.5), "val/miou": torch.tensor(0.25), "other": torch.tensor(1.0)}
    trainer = SimpleNamespace(is_global_zero=True, callback_metrics=metrics, max_epochs=3, current_epoch=1)
    lines.on_train_epoch_start(trainer, None)
    assert not capsys.readouterr().out
    lines.on_train_end(trainer, None)
    assert capsys.readouterr().out.startswith("epoch 2/3  train/loss_epoch 0.5000  val/miou 0.2500  0.0 s")


def test_a_log_that_cannot_be_written_hides_no_earlier_error(tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir()
    log = CSVLog(folder)
    log.log_metrics({"loss": 1.0}, step=1)
    folder.rmdir()
    with pytest.raises(StorageError, match=r"cannot write .*metrics\.csv: No such file or directory"):
        log.finalize("success")
    log.log_metrics({"loss": 1.0}, step=2)
    log.finalize("failed")
