"""Before the first trial: does the task's configuration take all that the space sets?"""

import json
import os
import subprocess
import sys

from nala_platform.errors import UserError

from .space import Space

LIMIT = 600.0  # seconds for all command lines; importing what reads them takes most of it


def rehearse(task: str, overrides: tuple[str, ...], space: Space) -> None:
    """Let ``nala fit --print_config`` read few command lines that hold every key and every kind of value of ``space``.

    It reads as a trial does, and neither builds nor trains; one process reads them all (`nala_platform.dry_run`).

    Raises:
        UserError: one is refused; its own message, which names the key and the nearest one.
    """
    words = [["fit", "--task", task, *overrides, *space.words(corner), "--print_config"] for corner in space.corners()]
    if message := _refusal(words):
        raise UserError(f"the study does not fit the task {task}: {message}")


def _refusal(lines: list[list[str]]) -> str:
    """What ``nala`` has against the first of the command lines that it refuses; empty: nothing."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "nala_platform.dry_run"],
            input=json.dumps(lines),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"reading the configuration has not ended in {LIMIT:.0f} s: try nala {' '.join(lines[0])}, which should "
            "take seconds"
        ) from error
    if done.returncode < 0:
        raise UserError(f"reading the configuration was ended by signal {-done.returncode}: try again")
    printed, code = done.stderr, done.returncode
    if code == 0:
        answer = json.loads(done.stdout.splitlines()[-1])
        printed, code = answer["error"], answer["code"]
    if code == 0:
        return ""
    said = [line for line in printed.splitlines() if line.strip()] or [f"exit code {code}"]
    ours = [line for line in said if line.startswith("nala: error: ")]
    return (ours or said)[-1].removeprefix("nala: error: ")
