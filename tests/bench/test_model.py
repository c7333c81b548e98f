"""``nala bench model``: the steps are those of a fit, and the attention's part is its own calls run again."""

import csv
from pathlib import Path

import pytest
import torch

from nala_platform.attention import ATTENTION, nala_attention, softmax_attention
from nala_platform.bench import main
from nala_platform.bench.model import capture
from nala_platform.bench.operator import recording
from nala_platform.errors import UserError
from nala_platform.models.language import causal_lm
from nala_platform.models.upscaler import Upscaler

SMALL = ("--data.batch_size", "2", "--trainer.accelerator", "cpu")


def test_steps_and_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    words = ["--task", "cls", *SMALL, "--attentions", "configured", "softmax", "--backends", "plain", "reference"]
    main(["model", *words, "--repeats", "2", "--output", "here"])
    rows = list(csv.DictReader((tmp_path / "here" / "model.csv").read_text().splitlines()[2:]))
    names = ["configured/plain", "configured/reference", "softmax"]
    assert [row["which"] for row in rows] == ["training step"] * 3 + ["inference"] * 3
    assert [row["contestant"] for row in rows] == 2 * names
    for first in (rows[0], rows[3]):
        for row in rows[rows.index(first) :][:3]:
            ms = float(row["ms"])
            assert float(row["attention_share"]) == pytest.approx(float(row["attention_ms"]) / ms, rel=1e-4)
            assert float(row["first_over_this"]) == pytest.approx(float(first["ms"]) / ms, rel=1e-4)
            assert row["calls"] == "5" and row["samples"] == "2"  # depths 1 1 2 1
    assert rows[1]["plain_over_this"] and not rows[2]["plain_over_this"]
    assert "image (2, " in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_captured_step_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    work = capture(["--task", "cls", *SMALL], "linear")
    losses = []
    for _ in range(12):
        losses.append(work.task.step(work.batch).loss.item())
        work.train()
    assert min(losses[6:]) < losses[0]
    before = [parameter.detach().clone() for parameter in work.task.network.parameters()]
    work.infer()
    assert all(map(torch.equal, before, work.task.network.parameters()))
    with recording(work.task.network) as calls:
        work.infer()
    assert {call.function for call in calls} == {ATTENTION["linear"]}


def test_a_recorded_call_is_the_layers_own():
    torch.manual_seed(0)
    network = Upscaler("nano", 2)
    held = [block.attn.attention for block in network.blocks]
    with recording(network) as calls:
        network(torch.rand(1, 3, 6, 5))
    assert [block.attn.attention for block in network.blocks] == held == [nala_attention] * 4
    assert len(calls) == 4
    call = calls[1]
    query, key, value = call.tensors
    assert query.shape == (1, 2, 30, 16) and query.stride() == (30 * 128, 16, 128, 1)  # parts of one projection
    assert call.options["rope"][0].shape == (30, 16)
    out = nala_attention(query, key, value, **call.options)
    torch.testing.assert_close(call.run(is_training=False), out.detach())
    torch.testing.assert_close(call.run(is_training=True), torch.autograd.grad(out, call.tensors, call.gradient))


def test_a_layer_that_looks_its_attention_up_is_recorded_too():
    rows = dict(ATTENTION)
    network = causal_lm(size="nano", vocab_size=17, attention="softmax")
    with recording(network) as calls:
        network(torch.arange(12)[None])
    assert rows == ATTENTION
    assert [call.function for call in calls] == [softmax_attention] * 4
    assert all(call.options["is_causal"] for call in calls)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--attentions", "sofmax"], "did you mean 'softmax'"),
        (["--backends", "chunky"], "backend='chunky' is unknown"),
        (["--repeats", "0"], "no whole number from 1 up"),
        (["--task", "seq"], "no task 'seq'; did you mean 'seg'"),
        ([], "needs --task NAME"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], line: str):
    with pytest.raises(UserError, match=line):
        main(["model", *words])
