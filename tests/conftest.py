"""For all tests: one thread (the machines that run them share two cores), silence from Lightning, quick `nala`s."""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "processes"))

from zygote import Zygote

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Starts ``nala`` processes without the seconds that importing takes."""
    with Zygote() as started:
        yield started
