"""Before the first trial: does the task's configuration take all that the space sets?"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from nala_platform.errors import UserError

from .space import Space


def rehearse(task: str, overrides: tuple[str, ...], space: Space) -> None:
    """Let ``nala fit --print_config`` read few command lines that hold every key and every kind of value of ``space``.

    It reads as a trial does, and neither builds nor trains: seconds a line, some at once.

    Raises:
        UserError: one is refused; its own message, which names the key and the nearest one.
    """
    lines = [[*overrides, *space.words(corner)] for corner in space.corners()]
    with ThreadPoolExecutor(min(len(lines), os.cpu_count() or 1)) as pool:
        for message in pool.map(lambda words: _refusal(["fit", "--task", task, *words, "--print_config"]), lines):
            if message:
                pool.shutdown(cancel_futures=True)
                raise UserError(f"the study does not fit the task {task}: {message}")


def _refusal(words: list[str]) -> str:
    """What ``nala`` has against ``words``; empty: nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "nala_platform", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    if done.returncode == 0:
        return ""
    if done.returncode < 0:
        raise UserError(f"reading the configuration was ended by signal {-done.returncode}: try again")
    said = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
    ours = [line for line in said if line.startswith("nala: error: ")]
    return (ours or said)[-1].removeprefix("nala: error: ")
