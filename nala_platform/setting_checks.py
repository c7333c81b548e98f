"""Values that Lightning would take and fail on later, or refuse in words that name no key: refused before a run begins.

What a library refuses by itself in its constructor needs no row here: see `nala_platform.setting_errors`.
"""

import os
import re
from datetime import timedelta
from typing import Any

import torch
from jsonargparse import Namespace
from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.strategies import StrategyRegistry

from nala_platform.errors import UserError, near

_DURATION = re.compile(r"\d+:\d+:\d+:\d+")
_CLUSTERS = ("MASTER_ADDR", "SLURM_JOB_ID", "LSB_JOBID", "OMPI_COMM_WORLD_SIZE", "KUBERNETES_PORT")  # set by launchers
_LEAST: dict[str, float] = {
    "seed_everything": 0,
    "bad_samples": 0,
    "trainer.num_nodes": 1,
    "trainer.fast_dev_run": 0,
    "trainer.max_epochs": -1,
    "trainer.min_epochs": -1,
    "trainer.max_steps": -1,
    "trainer.min_steps": -1,
    "trainer.check_val_every_n_epoch": 1,
    "trainer.num_sanity_val_steps": -1,
    "trainer.log_every_n_steps": 1,
    "trainer.accumulate_grad_batches": 1,
    "trainer.gradient_clip_val": 0,
    "trainer.reload_dataloaders_every_n_epochs": 0,
}
_MOST: dict[str, float] = {"seed_everything": 2**32 - 1}  # what NumPy takes
_SHARES = (*(f"limit_{split}_batches" for split in ("train", "val", "test", "predict")), "overfit_batches")
_LISTED = 8  # names in a message, the shortest
_NAMES = {
    "trainer.profiler": ("simple", "advanced", "pytorch", "xla"),
    "trainer.gradient_clip_algorithm": ("norm", "value"),
    "trainer.accelerator": ("auto", "gpu", *sorted(AcceleratorRegistry.available_accelerators())),
    "trainer.strategy": ("auto", *StrategyRegistry.available_strategies()),
}
_NEEDED = {  # what leaves nothing to do where it is 0
    "fit": ("trainer.max_epochs", "trainer.max_steps", "trainer.limit_train_batches"),
    "validate": ("trainer.limit_val_batches",),
    "test": ("trainer.limit_test_batches",),
    "predict": ("trainer.limit_predict_batches",),
}
_DONE = {"fit": "trained", "validate": "scored", "test": "scored", "predict": "predicted"}


def check_settings(settings: Any, subcommand: str) -> None:
    """Refuse the first value that is out of its range.

    Args:
        settings: of the subcommand; ``get`` and ``[…]`` take dotted keys, as those of jsonargparse's ``Namespace`` do.
        subcommand: ``fit``, ``validate``, ``test`` or ``predict``.

    Raises:
        UserError: names the key, the value and what it may be.
    """
    for key, what in (("model", "nothing would be trained"), ("data", "there is nothing to train on")):
        if settings.get(key, key) is None:
            raise UserError(f"{key} is null, so {what}: give the path of a class")
    for key, least in _LEAST.items():
        value = settings.get(key)
        if _is_number(value) and not least <= value <= _MOST.get(key, float("inf")):
            most = f"from {least} to {_MOST[key]}" if key in _MOST else f"{least} or more"
            raise UserError(f"{key} is {value}: it must be {most}")
    for key, known in _NAMES.items():
        value = settings.get(key)
        if isinstance(value, str) and value.lower() not in known and "." not in value:
            listed = ", ".join(sorted(known, key=len)[:_LISTED]) + (", …" if len(known) > _LISTED else "")
            raise UserError(f"{key} is {value!r}{near(value, known)} Known: {listed}")
    for name in _SHARES:
        _check_share(f"trainer.{name}", settings.get(f"trainer.{name}"))
    _check_interval("trainer.val_check_interval", settings.get("trainer.val_check_interval"))
    _check_duration("trainer.max_time", settings.get("trainer.max_time"))
    _check_devices(settings)
    for key in () if settings.get("trainer.fast_dev_run") else _NEEDED[subcommand]:
        if _is_number(settings.get(key)) and settings[key] == 0:
            raise UserError(f"{key} is 0, so nothing would be {_DONE[subcommand]}: raise it")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_share(key: str, value: Any) -> None:
    if _is_number(value) and not (0 <= value <= 1 or (value > 1 and value % 1 == 0)):
        raise UserError(f"{key} is {value}: it is a number of batches (0 or more), or a share of them from 0.0 to 1.0")


def _check_interval(key: str, value: Any) -> None:
    if isinstance(value, str | dict | timedelta):
        _check_duration(key, value)
    elif _is_number(value) and not (0 < value <= 1 or (value > 1 and value % 1 == 0)):
        raise UserError(
            f"{key} is {value}: it is a number of batches (1 or more), or a share of an epoch up to 1.0; "
            "--trainer.limit_val_batches 0 leaves validation out"
        )


def _check_duration(key: str, value: Any) -> None:
    wrong = UserError(f"{key} is {value!r}: a duration is written DD:HH:MM:SS, such as 00:12:00:00, and is above 0")
    if isinstance(value, dict):
        try:
            value = timedelta(**value)
        except (TypeError, OverflowError):
            raise wrong from None
    if isinstance(value, timedelta) and value <= timedelta(0):
        raise wrong
    if isinstance(value, str) and (_DURATION.fullmatch(value) is None or not value.strip("0:")):
        raise wrong


def _check_devices(settings: Any) -> None:
    nodes, devices = settings.get("trainer.num_nodes"), settings.get("trainer.devices")
    if _is_number(nodes) and nodes > 1 and not any(name in os.environ for name in _CLUSTERS):
        raise UserError(
            f"trainer.num_nodes is {nodes}, but nothing says where the other nodes are: start the run by torchrun or "
            "srun, or set MASTER_ADDR, MASTER_PORT and NODE_RANK on each node"
        )
    count = int(devices) if isinstance(devices, str) and re.fullmatch(r"\d+", devices) else devices
    accelerator = settings.get("trainer.accelerator")
    on_cpu = accelerator == "cpu" or (accelerator == "auto" and not torch.accelerator.is_available())
    if not on_cpu or devices in ("auto", None):
        return
    most = max(16, os.cpu_count() or 1)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= most:
        raise UserError(
            f"trainer.devices is {devices!r}: on a CPU it is the number of processes, from 1 to {most} on this machine"
        )


def check_backend(name: str) -> None:
    """Refuse a name that ``torch.compile`` does not know.

    Raises:
        UserError: names the nearest.
    """
    known = torch.compiler.list_backends(exclude_tags=())
    if name not in known:
        usual = ", ".join(torch.compiler.list_backends())
        raise UserError(f"compile is {name!r}{near(name, known)} Known: {usual}")


def refuse_what_a_run_decides(trainer: Namespace) -> None:
    """Refuse keys of the trainer whose values a run folder fixes.

    Raises:
        UserError: says which key of ours takes its place.
    """
    for key, value, mend in (
        ("barebones", True, "it turns off the checkpoints and logs that a run consists of"),
        ("enable_checkpointing", False, "a run always keeps its checkpoints"),
    ):
        if trainer.get(key) is value:
            raise UserError(f"--trainer.{key} {str(value).lower()} cannot be used here: {mend}")
    if trainer.get("default_root_dir") is not None:
        raise UserError("--trainer.default_root_dir cannot be used here: --runs_dir says where run folders are made")
