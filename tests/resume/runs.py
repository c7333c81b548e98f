"""Tiny runs of the four tasks, and whether two of them are the same to the bit."""

import contextlib
import json
import socket
import time
from pathlib import Path

import torch

from nala_platform.errors import UserError
from nala_platform.runs.checkpoint_file import read_note
from nala_platform.verify import differences

COMMON = (
    *("--trainer.max_epochs", "3", "--trainer.limit_train_batches", "5", "--trainer.limit_val_batches", "2"),
    *("--trainer.limit_test_batches", "1", "--trainer.log_every_n_steps", "1", "--checkpoint.every_n_steps", "1"),
    *("--trainer.accelerator", "cpu", "--trainer.num_sanity_val_steps", "0"),
)
# dropout and drop path are on in each, so the random generators count
TASKS = {
    "cls": (*("--data.batch_size", "8", "--model.network.drop_path_rate", "0.2"), "--trainer.val_check_interval", "3"),
    "seg": (
        "--data.batch_size",
        "2",
        "--model.network.drop_path_rate",
        "0.2",
        "--trainer.accumulate_grad_batches",
        "2",
    ),
    "sr": ("--data.batch_size", "2", "--data.num_workers", "2", "--data.patch.size", "16"),
    # without its callbacks, which read and write texts of the test split for as long as all the rest takes
    "lm": (
        *("--data.batch_size", "2", "--data.context", "32", "--model.network.dropout", "0.1"),
        *("--trainer.callbacks", "null"),
    ),
}


def words(task: str, folder: str) -> list[str]:
    """``nala fit`` of a task in a folder, to begin with and to go on with."""
    return ["fit", "--task", task, "--folder", folder, "--resume", "auto", *COMMON, *TASKS[task]]


def assert_same(one: Path, other: Path) -> None:
    """Weights, average, optimizer, schedule, counters, scores and log of two runs are equal to the bit."""
    for name in ("last.ckpt", "best.ckpt"):
        first = torch.load(one / "checkpoints" / name, weights_only=True)
        assert first["optimizer_states"] and first["current_model_state"] and first["lr_schedulers"]
    assert differences(one, other) == []
    for name in ("metrics.csv", "checkpoints/model.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    metrics = [json.loads((run / "summary.json").read_text())["metrics"] for run in (one, other)]
    assert metrics[0] == metrics[1]


def start_group(
    zygote, folder: Path, processes: int, *typed: str, environment: dict[str, str] | None = None
) -> list[int]:
    """One ``nala`` in as many processes, which find each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "NODE_RANK": "0"}
    several = ("--trainer.devices", str(processes), "--trainer.strategy", "ddp") if processes > 1 else ()
    return [
        zygote.start(
            folder,
            *typed,
            *several,
            output=f"output-{rank}.txt",
            environment={
                **(environment or {}),
                **({**common, "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)} if several else {}),
            },
        )
        for rank in range(processes)
    ]


def end_group(zygote, folder: Path, pids: list[int], code: int = 0) -> str:
    """What the first one prints; all end with ``code``."""
    limit = time.monotonic() + 120
    codes = [zygote.wait(pid) for pid in pids]
    text = "".join((folder / f"output-{rank}.txt").read_text() for rank in range(len(pids)))
    assert time.monotonic() < limit and set(codes) == {code}, text
    return text


def run_group(zygote, folder: Path, processes: int, *typed: str, code: int = 0) -> str:
    return end_group(zygote, folder, start_group(zygote, folder, processes, *typed), code)


def wait_for(run: Path, step: int, seconds: float) -> None:
    """Until a checkpoint of ``step`` or later is there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, UserError):
            if read_note(run / "checkpoints" / "last.ckpt").get("step", 0) >= step:
                return
        time.sleep(0.005)
