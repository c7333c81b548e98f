"""``nala verify-resume``: kill a run of the user's own configuration, resume it, compare it with one left alone."""

import contextlib
import csv
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from nala_platform import runs
from nala_platform.arguments import Arguments, path, positive
from nala_platform.errors import ExitCode, UserError
from nala_platform.runs.checkpoint_file import DamagedError, read_note

# Short enough for a few minutes, long enough for epochs that end, validations, and kills between and within them. What
# is typed beats it.
SMALL = (
    *("--trainer.max_epochs", "3", "--trainer.limit_train_batches", "6", "--trainer.limit_val_batches", "2"),
    *("--trainer.limit_test_batches", "1", "--trainer.log_every_n_steps", "1", "--checkpoint.every_n_steps", "1"),
)
STRAIGHT, KILLED = "straight", "killed"


def main(words: list[str]) -> None:
    """Do the experiment, print what came of it; exit code 1 if the two runs differ.

    Raises:
        UserError: the run cannot be made at all, or ended before it could be killed.
    """
    parser = Arguments("nala verify-resume", "Kill and resume a run, and compare it with one that was left alone.")
    parser.add_argument("--kills", type=positive, default=3, help="how often it is killed (3)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    parser.add_argument("--keep", type=path, help="a new folder for the two runs; else they are removed")
    options, typed = parser.split(words)
    if options.keep is not None and options.keep.exists():
        raise UserError(f"--keep {options.keep} exists: give a folder that does not")
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        steps, seconds = _straight(folder, typed)
        struck = _killed(folder, typed, random.Random(options.seed), options.kills, steps, seconds)
        found = differences(folder / STRAIGHT, folder / KILLED)
    print(f"{steps} steps; killed with SIGKILL after the checkpoints of steps {', '.join(map(str, struck))}")
    if found:
        print("not equal:\n  " + "\n  ".join(found))
        sys.exit(ExitCode.FAILURE)
    print("equal to the bit: weights, average, optimizer, schedule, random states, scores and log")


def _straight(folder: Path, typed: list[str]) -> tuple[int, float]:
    """Steps of the run that is left alone, and the seconds of one of them, start-up and validations shared out."""
    print("a run that is left alone …", flush=True)
    start = time.monotonic()
    _wait(_start(folder, STRAIGHT, typed), folder, STRAIGHT)
    steps = read_note(folder / STRAIGHT / runs.CHECKPOINTS / runs.LAST)["step"]
    return steps, (time.monotonic() - start) / steps


def _killed(
    folder: Path, typed: list[str], generator: random.Random, kills: int, steps: int, seconds: float
) -> list[int]:
    """Kill the other run at chosen steps and random moments after them, then let it end; the steps."""
    struck = []
    for step in sorted(generator.choices(range(max(steps, 1)), k=kills)):
        print(f"a run that is killed after step {step} …", flush=True)
        process = _start(folder, KILLED, typed)
        _wait_for_step(folder / KILLED, step, process)
        time.sleep(generator.uniform(0.0, seconds))
        process.send_signal(signal.SIGKILL)
        if process.wait() == -signal.SIGKILL:
            struck.append(step)
    print("and resumed to its end …", flush=True)
    _wait(_start(folder, KILLED, typed), folder, KILLED)
    if not struck:
        raise UserError("the run ended before it could be killed: give it more steps (--trainer.limit_train_batches)")
    return struck


def _start(folder: Path, name: str, typed: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "nala_platform", "fit", *SMALL, *typed]
    with (folder / f"{name}.txt").open("ab") as output:
        return subprocess.Popen(
            [*command, "--folder", str(folder / name), "--resume", "auto"], stdout=output, stderr=output
        )


def _wait(process: subprocess.Popen[bytes], folder: Path, name: str) -> None:
    try:
        code = process.wait()
    except BaseException:
        process.kill()
        raise
    if code != 0:
        said = (folder / f"{name}.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise UserError(
            f"the run ended with exit code {code}: {said[-1].removeprefix('nala: error: ') if said else ''}"
        )


def _wait_for_step(run: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with contextlib.suppress(OSError, DamagedError):
            if read_note(run / runs.CHECKPOINTS / runs.LAST).get("step", 0) >= step:
                return
        time.sleep(0.01)


def differences(one: Path, other: Path) -> list[str]:
    """What differs between two finished runs: a line a checkpoint, and one for the log; empty if they are equal."""
    found = []
    for name in (runs.LAST, runs.BEST):
        first, second = (
            torch.load(run / runs.CHECKPOINTS / name, map_location="cpu", weights_only=True) for run in (one, other)
        )
        for checkpoint in (first, second):
            checkpoint.get("callbacks", {}).pop("Timer", None)  # of --trainer.max_time: what a clock says is no result
        if (place := difference(first, second)) is not None:
            found.append(f"{name}: {place}")
    logs = [(run / runs.METRICS).read_text(encoding="utf-8").splitlines() for run in (one, other)]
    if logs[0] != logs[1]:
        first, second = (list(csv.DictReader(log)) for log in logs)
        found.append(f"{runs.METRICS}: {difference(first, second)}")
    return found


def difference(one: Any, other: Any, path: str = "") -> str | None:
    """Where two trees of plain values and tensors differ first, to the bit; None if nowhere. NaN equals NaN.

    Examples:
        >>> difference({"a": [1, 2.0]}, {"a": [1, 2.5]})
        '/a/1: 2.0 and 2.5'
    """
    if type(one) is not type(other):
        return f"{path}: {one} and {other}"
    if isinstance(one, torch.Tensor):
        return None if one.dtype == other.dtype and _equal(one, other) else f"{path}: tensors differ"
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return f"{path}: only one has {', '.join(sorted(map(str, one.keys() ^ other.keys())))}"
        pairs = [(key, one[key], other[key]) for key in one]
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            return f"{path}: {len(one)} and {len(other)} entries"
        pairs = [(place, a, b) for place, (a, b) in enumerate(zip(one, other, strict=True))]
    else:
        return None if one == other or (one != one and other != other) else f"{path}: {one} and {other}"
    return next((found for key, a, b in pairs if (found := difference(a, b, f"{path}/{key}"))), None)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())
