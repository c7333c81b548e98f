"""The bench of the guarantees measures what it says, in one process, and leaves nothing behind."""

import csv
from pathlib import Path

import pytest

from nala_platform.bench import guarantees, main
from nala_platform.errors import UserError


def test_the_loops_are_timed_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ("--data.batch_size", "2", "--trainer.accelerator", "cpu", "--trainer.accumulate_grad_batches", "2")
    main(["guarantees", "--task", "cls", "--steps", "20", "--output", "costs.csv", *small])
    with (tmp_path / "costs.csv").open() as file:
        rows = {row["what"]: row for row in csv.DictReader(file)}
    for loop in (guarantees.BARE, guarantees.AVERAGED, guarantees.OURS):
        assert 1 < float(rows[loop]["value"]) < 10_000 and rows[loop]["unit"] == "ms a step"
    assert 0.3 < float(rows[f"{guarantees.OURS} / {guarantees.BARE}"]["value"]) < 30
    assert 5 < float(rows["checkpoint: size"]["value"]) < 15  # MB: weights, their average, two moments of 0.5 M floats
    parts = sum(float(row["value"]) for what, row in rows.items() if what.endswith(" alone"))
    assert 0 < parts < 20 * float(rows["checkpoint: whole"]["value"])
    assert "medians over 2 rounds of 10 steps" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["costs.csv"]


def test_a_mistake_is_one_line():
    with pytest.raises(UserError, match="no bench 'guarantee'; did you mean 'guarantees'"):
        main(["guarantee"])
    with pytest.raises(UserError, match="lower --steps"):
        main(["guarantees", "--task", "cls", "--steps", "10", "--data.batch_size", "2", "--trainer.max_steps", "12"])
