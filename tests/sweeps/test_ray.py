"""`--executor ray`: Ray places the trials of a sweep, on a Ray of this machine."""

import importlib.util
from pathlib import Path

import pytest
from optuna.trial import TrialState
from test_sweep import sweep, trials

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: nala-platform[ray]"),
]


def test_ray_places_the_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    printed = sweep(tmp_path, "study.yaml", "--executor", "ray", "--workers", "2")
    assert "report: " in printed and "best: " in printed
    found = trials(tmp_path)
    assert [trial.state for trial in found] == [TrialState.COMPLETE] * 2
    assert all(len(trial.user_attrs["attempts"]) == 1 for trial in found)
