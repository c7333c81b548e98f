"""One zygote for all, and the uninterrupted run of each task."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from runs import words
from zygote import Zygote


class Straight(NamedTuple):
    folder: Path
    seconds: float


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote() as started:
        yield started


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
