"""Kill it anywhere, resume it, and the result is the one there would have been."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from runs import TASKS, assert_same, wait_for, words

STEPS = {"seg": 9}  # of a whole run, where gradients accumulate; else 15


def campaign(zygote, folder: Path, task: str, reference, kills: int, seed: int) -> None:
    """Kill runs at random moments until ``kills`` have struck, and compare each run that came to its end."""
    generator, struck, runs = random.Random(f"{task}{seed}"), [], 0
    while len(struck) < kills:
        runs, code = runs + 1, None
        run = folder / f"run{runs}"
        steps = sorted(generator.choices(range(STEPS.get(task, 15) + 1), k=kills - len(struck)))
        while code != 0:
            pid = zygote.start(folder, *words(task, run.name))
            if steps:
                step = steps.pop(0)
                wait_for(run, step, 3 * reference.seconds)
                # anywhere in a step, a validation, a save, the test
                time.sleep(generator.uniform(0.0, 0.05 * reference.seconds))
                os.kill(pid, signal.SIGKILL)
            code = zygote.wait(pid)
            assert code in (0, -signal.SIGKILL), (folder / "output.txt").read_text()
            if code != 0:
                struck.append(step)
        assert_same(reference.folder, run)
    print(f"{task}: killed after steps {struck}, {runs} runs to their end")


@pytest.mark.parametrize(
    ("task", "kills"),
    [("cls", 3), ("lm", 3), *(pytest.param(task, 3, marks=pytest.mark.slow) for task in ("seg", "sr"))],
)
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_never_was(
    task: str, kills: int, zygote, straight, tmp_path: Path
):
    campaign(zygote, tmp_path, task, straight(task), kills, seed=0)


@pytest.mark.campaign
@pytest.mark.parametrize("task", TASKS)
def test_many_kills(task: str, zygote, straight, tmp_path: Path):
    campaign(zygote, tmp_path, task, straight(task), kills=20, seed=1)
