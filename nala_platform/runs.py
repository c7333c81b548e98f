"""Run folders: where a run writes, how it is found again, and files that are whole or not there at all.

A run folder ``runs/<task>/<time>-<name>/`` holds ``config.yaml`` (complete), ``checkpoints/`` (``best.ckpt``,
``last.ckpt``), ``metrics.csv``, ``curves.png``, pictures and ``summary.json``. Light: imports no torch.
"""

import json
import math
import os
import platform
import tempfile
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from nala_platform.errors import UserError

CONFIG = "config.yaml"
CHECKPOINTS = "checkpoints"
BEST = "best.ckpt"
LAST = "last.ckpt"
WEIGHTS = "model.safetensors"
SUMMARY = "summary.json"
METRICS = "metrics.csv"

_REPORTED = ("torch", "lightning", "torchmetrics", "timm", "transformers", "segmentation-models-pytorch", "numpy")


class Run(NamedTuple):
    """A finished or interrupted run on disk."""

    folder: Path
    config: Path
    checkpoint: Path


def find_run(where: str, prefer: str = BEST) -> Run:
    """Find the run that ``where`` means: a run folder, or a checkpoint file inside one.

    Args:
        where: path of the folder or of a ``.ckpt`` file in its ``checkpoints/``.
        prefer: checkpoint to take for a folder; when it is missing the other of ``best.ckpt``/``last.ckpt``.

    Raises:
        UserError: nothing there, no ``config.yaml`` beside it, or no checkpoint inside.

    """
    path = Path(where)
    if not path.exists():
        raise UserError(f"no run at {where}: give a run folder such as runs/seg/<time>-<name>, or a .ckpt file in one")
    folder = path if path.is_dir() else path.parent.parent
    config = folder / CONFIG
    if not config.is_file():
        raise UserError(f"{folder} is not a run folder: it has no {CONFIG}; for a bare checkpoint use --ckpt_path")
    if path.is_file():
        return Run(folder, config, path)
    for name in (prefer, BEST, LAST):
        if (checkpoint := folder / CHECKPOINTS / name).is_file():
            return Run(folder, config, checkpoint)
    raise UserError(f"{folder} has no checkpoint yet: {CHECKPOINTS}/{BEST} and {CHECKPOINTS}/{LAST} are missing")


def new_folder(parent: Path, name: str) -> Path:
    """Make ``parent/<time>-<name>`` and return it; two processes in the same second get two folders.

    Raises:
        UserError: the parent cannot be made or written to.

    """
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    label = f"{stamp}-{name}" if name else stamp
    for attempt in range(1000):
        folder = parent / (label if attempt == 0 else f"{label}-{attempt + 1}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if parent.exists() and not parent.is_dir():
                raise UserError(
                    f"cannot make a run folder in {parent}: it is a file; choose another --runs_dir"
                ) from None
            continue
        except OSError as error:
            raise UserError(
                f"cannot make the run folder {folder}: {error.strerror}; choose another --runs_dir"
            ) from error
        return folder
    raise UserError(f"{parent} holds 1000 runs called {label}: choose another --name")


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a whole file: a reader, or a machine that loses power, sees the old content or the new, never a part."""
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write ``value`` as JSON that any reader takes: NaN and infinities, which JSON lacks, become ``null``."""
    write_atomic(path, json.dumps(_finite(value), indent=2, allow_nan=False, default=str) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def versions() -> dict[str, str]:
    """Versions that a result depends on: Python, this platform, and the libraries that compute."""
    found = {"python": platform.python_version(), "nala-platform": _version("nala-platform")}
    return found | {name: _version(name) for name in _REPORTED}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
