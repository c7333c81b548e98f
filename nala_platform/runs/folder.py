"""Run folders: where a run writes, and how it is found again.

A run folder ``runs/<task>/<time>-<name>/`` holds ``config.yaml`` (complete), ``checkpoints/`` (``best.ckpt``,
``last.ckpt``, ``previous.ckpt``), ``metrics.csv``, ``curves.png``, pictures and ``summary.json``.
"""

import errno
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from nala_platform.errors import NalaError, StorageError, UserError
from nala_platform.paths import quoted, shown

CONFIG = "config.yaml"
CHECKPOINTS = "checkpoints"
BEST = "best.ckpt"
LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"
TOKENIZER = "tokenizer"  # folder, of a language model's run
STAGED = ".new.ckpt"  # written, and not yet given its name
WEIGHTS = "model.safetensors"
SUMMARY = "summary.json"
METRICS = "metrics.csv"
LOCK = ".lock"


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
    path, folder = Path(where).expanduser(), find_folder(where)
    config = folder / CONFIG
    if path.is_file():
        return Run(folder, config, path)
    for name in (prefer, BEST, LAST):
        if (checkpoint := folder / CHECKPOINTS / name).is_file():
            return Run(folder, config, checkpoint)
    raise UserError(f"{folder} has no checkpoint yet: {CHECKPOINTS}/{BEST} and {CHECKPOINTS}/{LAST} are missing")


def find_folder(where: str) -> Path:
    """The run folder that ``where`` means: itself, or the one that a checkpoint file lies in.

    Raises:
        UserError: nothing there, or no ``config.yaml``.
    """
    path = Path(where).expanduser()
    if not path.exists():
        raise UserError(f"no run at {where}: give a run folder such as runs/seg/<time>-<name>, or a .ckpt file in one")
    folder = path if path.is_dir() else path.parent.parent
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} is not a run folder: it has no {CONFIG}; for a bare checkpoint use --ckpt_path")
    return folder


def take_folder(folder: Path) -> Path:
    """Make ``folder`` for one run and return it; an empty one will do.

    Raises:
        UserError: it holds something, or cannot be made.
        StorageError: the disk is full.
    """
    if (folder / CONFIG).exists():
        raise UserError(f"{shown(folder)} holds a run: nala fit --resume {quoted(folder)} goes on with it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refusal(folder, error, "--folder") from error
    if any(path.name != LOCK for path in folder.iterdir()):
        raise UserError(f"{shown(folder)} is not empty: a run wants a --folder of its own")
    return folder


def new_folder(parent: Path, name: str) -> Path:
    """Make ``parent/<time>-<name>`` and return it; two processes in the same second get two folders.

    Raises:
        UserError: the parent cannot be made or written to.
        StorageError: the disk is full.

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
                    f"cannot make a run folder in {shown(parent)}: it is a file; choose another --runs_dir"
                ) from None
            continue
        except OSError as error:
            raise _refusal(folder, error, "--runs_dir") from error
        return folder
    raise UserError(f"{parent} holds 1000 runs called {label}: choose another --name")


def _refusal(folder: Path, error: OSError, option: str) -> NalaError:
    """A full disk may have room again for the next attempt of a sweep; a place that cannot be written stays so."""
    kind = StorageError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UserError
    return kind(f"cannot make the run folder {shown(folder)}: {error.strerror}; choose another {option}")
