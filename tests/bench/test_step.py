"""``nala bench step``: its contestants compute what their names say, and its figures mean what their columns say."""

import csv
from pathlib import Path

import pytest
import torch

from nala_platform.attention import nala_attention, softmax_attention
from nala_platform.bench import main, step
from nala_platform.errors import UserError

WORDS = ["step", "--lengths", "64", "256", "--heads", "2", "--head-dim", "8", "--repeats", "3"]


def test_one_more_token_is_the_last_row_of_the_whole(monkeypatch: pytest.MonkeyPatch):
    made: list[torch.Tensor] = []
    randn = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *a, **options: made.append(randn(*a, **options)) or made[-1])
    steps, kept = step.prepared(70, 2, 3, 8, "float64", "cpu")
    expected = {
        step.NALA: nala_attention(*made, is_causal=True, backend="reference"),
        step.SOFTMAX: softmax_attention(*made, is_causal=True, backend="reference"),
    }
    expected[step.PREFIX] = expected[step.NALA]
    assert set(steps) == set(expected)
    for name, work in steps.items():
        for _ in range(2):  # a run leaves the state as it was
            torch.testing.assert_close(work(), expected[name][:, :, -1:], rtol=1e-10, atol=1e-12)
    assert kept[step.SOFTMAX] == kept[step.PREFIX] == 2 * (2 * 3 * 70 * 8) * 8  # keys and values
    assert kept[step.NALA] == (2 * 3 * (16 * 8 + 16) + 2) * 8  # sums (F, E) and (F,) a head, a count a sample


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main([*WORDS, "--output", str(tmp_path)])
    lines = (tmp_path / "step.csv").read_text().splitlines()
    assert "threads, torch" in lines[0] and "2 heads of 8" in lines[1]
    rows = {(int(row["length"]), row["contestant"]): row for row in csv.DictReader(lines[2:])}
    assert set(rows) == {(length, name) for length in (64, 256) for name in (step.NALA, step.SOFTMAX, step.PREFIX)}
    for (length, _), row in rows.items():
        assert 0 < float(row["fastest_ms"]) <= float(row["ms"]) <= float(row["slowest_ms"])
        ratio = float(rows[length, step.SOFTMAX]["ms"]) / float(row["ms"])
        assert float(row["softmax_over_this"]) == pytest.approx(ratio, rel=1e-4)
        assert row["exponent"] and row["samples"] == "3"
    assert rows[64, step.NALA]["kept_bytes"] == rows[256, step.NALA]["kept_bytes"]
    assert 4 * int(rows[64, step.SOFTMAX]["kept_bytes"]) == int(rows[256, step.SOFTMAX]["kept_bytes"])
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    assert "softmax / this" in capsys.readouterr().out


def test_one_length_has_no_exponent(tmp_path: Path):
    main([*WORDS[:3], *WORDS[4:], "--output", str(tmp_path)])
    assert all(line.endswith(",") for line in (tmp_path / "step.csv").read_text().splitlines()[3:])


def test_a_mistake_is_one_line():
    with pytest.raises(UserError, match="no option --length"):
        main(["step", "--length", "5"])
    with pytest.raises(UserError, match="float31"):
        main(["step", "--dtype", "float31"])
