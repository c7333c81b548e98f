"""The uninterrupted run of each task, and one that was killed."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from runs import wait_for, words
from zygote import Zygote


class Straight(NamedTuple):
    folder: Path
    seconds: float


@pytest.fixture(scope="session")
def straight(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Straight]:
    """The run of a task that nothing interrupts; made when it is first asked for."""
    made: dict[str, Straight] = {}

    def make(task: str) -> Straight:
        if task not in made:
            folder = tmp_path_factory.mktemp(task)
            start = time.monotonic()
            zygote.run(folder, *words(task, "run"))
            made[task] = Straight(folder / "run", time.monotonic() - start)
        return made[task]

    return make


@pytest.fixture(scope="session")
def stopped(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classification run that was killed in its second epoch; to be copied."""
    folder = tmp_path_factory.mktemp("stopped")
    pid = zygote.start(folder, *words("cls", "run"))
    wait_for(folder / "run", 7, 120)
    os.kill(pid, signal.SIGKILL)
    assert zygote.wait(pid) == -signal.SIGKILL
    return folder / "run"


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the killed run, in a folder of the test's own."""
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"
