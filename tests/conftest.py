"""For all tests: one thread (the machines that run them share two cores), and silence from Lightning."""

import logging
import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
