"""``nala bench step``: its contestants compute what their names say, and its figures mean what their columns say."""

import csv
from pathlib import Path

import pytest
import torch

from nala_platform.attention import nala_attention, softmax_attention
from nala_platform.bench import generation, main, step
from nala_platform.errors import UserError
from nala_platform.models.language import NaLaConfig, NaLaForCausalLM

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
    with pytest.raises(UserError, match="--model='nan' is unknown; did you mean 'nano'"):
        main(["step", "--model", "nan"])


@torch.no_grad()
def test_the_bare_loop_computes_what_the_model_does(monkeypatch: pytest.MonkeyPatch):
    """Both give the logits of one pass over all tokens, again and again, at each length."""
    monkeypatch.setattr(generation, "_PREFILL", 30)
    torch.manual_seed(0)
    model = NaLaForCausalLM(NaLaConfig.from_size("nano", vocab_size=generation.VOCABULARY, num_hidden_layers=2)).eval()
    contexts = generation.contexts_of(model, [5, 70])
    assert [context.length for context in contexts] == [5, 70]
    generator = torch.Generator().manual_seed(0)
    pieces = [torch.randint(generation.VOCABULARY, (1, n), generator=generator) for n in (5, 30, 30, 5)]
    token = torch.tensor([[7]])
    for context, seen in zip(contexts, (pieces[:1], pieces), strict=True):
        expected = model(torch.cat([*seen, token], 1)).logits[0, -1]
        for step_of in (generation.ModelStep(model, context), generation.BareStep(model, context)):
            for _ in range(2):
                torch.testing.assert_close(step_of(token), expected, rtol=1e-4, atol=1e-5)


def test_the_table_of_a_whole_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["step", "--model", "--lengths", "4", "16", "--repeats", "2", "--clock", "cpu", "--output", str(tmp_path)]
    main(words)
    lines = (tmp_path / "step_model.csv").read_text().splitlines()
    assert "nano, 1.1 M parameters" in lines[1] and "cpu clock" in lines[1]
    rows = {(int(row["length"]), row["contestant"]): row for row in csv.DictReader(lines[2:])}
    assert set(rows) == {(length, name) for length in (4, 16) for name in (generation.MODEL, generation.BARE)}
    for (length, name), row in rows.items():
        assert 0 < float(row["fastest_ms"]) <= float(row["ms"]) <= float(row["slowest_ms"])
        for column, other in (("over_bare", (length, generation.BARE)), ("over_shortest", (4, name))):
            assert float(row[column]) == pytest.approx(float(row["ms"]) / float(rows[other]["ms"]), rel=1e-4)
    assert (tmp_path / "step_model.png").read_bytes().startswith(b"\x89PNG")
    assert "over the bare loop" in capsys.readouterr().out
