"""What a run costs, against closed forms."""

from types import SimpleNamespace

import torch
from torch import nn

from nala_platform.callbacks.costs import Costs


def test_the_arithmetic_of_a_sample_is_counted():
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 5 * 7, 11))
    module = SimpleNamespace(step=lambda batch: network(batch["image"]))
    costs = Costs()
    costs.on_test_batch_start(None, module, {"image": torch.zeros(4, 3, 5, 7), "name": list("abcd")}, 0)
    assert costs.found()["gmacs"] == (5 * 7 * 8 * 3 * 9 + 8 * 5 * 7 * 11) / 1e9


def test_steps_are_timed_without_the_validations_between_them(monkeypatch):
    now = iter([0.0, 1.0, 3.0, 60.0, 61.0])
    monkeypatch.setattr("nala_platform.callbacks.costs.time.perf_counter", lambda: next(now))
    costs = Costs()
    for _ in range(3):
        costs.on_train_batch_start(None, None, None, 0)
    costs.on_validation_start(None, None)
    for _ in range(2):
        costs.on_train_batch_start(None, None, None, 0)
    assert costs.found()["seconds_per_step"] == 1.0  # of 1, 2 and 1
    assert costs.found()["peak_memory_bytes"] > 50e6 and "gmacs" not in costs.found()
