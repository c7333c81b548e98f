"""Kill it anywhere, resume it, and the result is the one there would have been."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from runs import TASKS, assert_same, words


def campaign(zygote, folder: Path, task: str, reference, kills: int, seed: int) -> None:
    """Kill runs at random moments until ``kills`` have struck, and compare each run that came to its end."""
    generator, struck, runs = random.Random(f"{task}{seed}"), 0, 0
    while struck < kills:
        runs, code = runs + 1, None
        while code != 0:
            pid = zygote.start(folder, *words(task, f"run{runs}"))
            if struck < kills:
                time.sleep(generator.uniform(0.1, 0.9) * reference.seconds)
                os.kill(pid, signal.SIGKILL)
            code = zygote.wait(pid)
            assert code in (0, -signal.SIGKILL), (folder / "output.txt").read_text()
            struck += code != 0
        assert_same(reference.folder, folder / f"run{runs}")
    print(f"{task}: {struck} kills, {runs} runs to their end")


@pytest.mark.parametrize("task", TASKS)
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_never_was(task: str, zygote, straight, tmp_path: Path):
    campaign(zygote, tmp_path, task, straight(task), kills=5, seed=0)
