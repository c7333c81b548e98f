"""Settings that move validations, steps, ends and random numbers about: killed and resumed, the run is the same."""

import os
import signal
from pathlib import Path

import pytest
from runs import COMMON, wait_for

from nala_platform.verify import differences

CLS = (*("--task", "cls", "--data.batch_size", "8", "--model.network.drop_path_rate", "0.2"), *COMMON)
ACROSS = ("--trainer.check_val_every_n_epoch", "null", "--trainer.val_check_interval")
EARLY = (*("--trainer.callbacks+", "lightning.pytorch.callbacks.EarlyStopping"), "--trainer.callbacks.monitor")
MINE = """
from lightning.pytorch import Callback

class Mine(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.log("mine/loss", outputs["loss"])

    def on_validation_end(self, trainer, pl_module):
        for logger in trainer.loggers:
            logger.log_metrics({"mine/step": float(trainer.global_step)}, step=trainer.global_step)
"""


def compare(zygote, folder: Path, settings: tuple[str, ...], kills: tuple[int, ...]) -> str:
    """Kill a run after the checkpoints of some steps, let it end, compare; what the last process printed."""
    (folder / "mine.py").write_text(MINE)
    common = ("fit", *CLS, *settings, "--resume", "auto", "--folder")
    zygote.run(folder, *common, "straight")
    for step in kills:
        pid = zygote.start(folder, *common, "killed")
        wait_for(folder / "killed", step, 120)
        os.kill(pid, signal.SIGKILL)
        assert zygote.wait(pid) in (0, -signal.SIGKILL), (folder / "output.txt").read_text()
    text = zygote.run(folder, *common, "killed")
    assert differences(folder / "straight", folder / "killed") == []
    kept = [sorted(path.name for path in (folder / run / "checkpoints").iterdir()) for run in ("straight", "killed")]
    assert kept[0] == kept[1]
    assert sorted(path.name for path in (folder / "killed").iterdir() if path.name.startswith(".")) == []
    return text


def test_the_check_before_the_first_epoch_shifts_no_random_number(zygote, tmp_path: Path):
    compare(zygote, tmp_path, ("--trainer.num_sanity_val_steps", "2"), (7,))


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("settings", "kills"),
    [
        (("--trainer.accumulate_grad_batches", "4"), (1, 3)),
        (("--trainer.accumulate_grad_batches", "2", "--trainer.val_check_interval", "3"), (1, 2, 3, 5)),
        (("--trainer.val_check_interval", "0.5"), (2, 4, 9)),
        (("--trainer.val_check_interval", "1"), (2, 5, 6, 12)),
        ((*ACROSS, "4"), (3, 4, 6, 8, 13)),
        ((*ACROSS, "8"), (3, 7, 8, 12, 13)),
        (("--trainer.check_val_every_n_epoch", "2"), (3, 6, 7, 12)),
        (("--trainer.max_epochs", "-1", "--trainer.max_steps", "13"), (3, 6, 12)),
        (
            ("--trainer.max_epochs", "-1", "--trainer.max_steps", "5", "--trainer.accumulate_grad_batches", "2"),
            (1, 3, 4),
        ),
        (("--trainer.precision", "bf16-mixed"), (3, 6, 11)),
        (("--trainer.limit_val_batches", "0"), (3, 6, 11)),
        (("--trainer.reload_dataloaders_every_n_epochs", "1", "--data.num_workers", "2"), (3, 6, 11)),
        (("--checkpoint.every_n_steps", "4", "--trainer.log_every_n_steps", "5"), (4, 5, 10, 12)),
        (("--checkpoint.keep_best", "3", "--trainer.val_check_interval", "2"), (2, 3, 6, 7, 11)),
        (("--ema.decay", "null"), (3, 6, 11)),
        ((*EARLY, "val/loss", "--trainer.callbacks.min_delta", "9", "--trainer.callbacks.patience", "1"), (3, 6, 9)),
        (
            (
                *("--trainer.logger+", "lightning.pytorch.loggers.CSVLogger", "--trainer.logger.save_dir", "logs"),
                *("--trainer.callbacks+", "mine.Mine", "--trainer.num_sanity_val_steps", "2"),
            ),
            (3, 6, 11),
        ),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value[0], str) else "",
)
def test_a_run_of_any_settings(settings: tuple[str, ...], kills: tuple[int, ...], zygote, tmp_path: Path):
    compare(zygote, tmp_path, settings, kills)
