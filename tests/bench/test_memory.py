"""``nala bench memory``: what is measured, what is computed, and that the two are told apart."""

import csv
from pathlib import Path

import pytest
import torch

from nala_platform.attention.nala import BACKENDS
from nala_platform.bench import main, memory
from nala_platform.bench.memory_report import Row, beside_published, compared, draw
from nala_platform.bench.peak import Peak
from nala_platform.bench.switch import computed_as
from nala_platform.bench.upscaling import Upscaling
from nala_platform.errors import UserError

MB = 10**6


def table(folder: Path) -> dict[tuple[str, int, str], dict[str, str]]:
    rows = csv.DictReader((folder / "memory.csv").read_text().splitlines()[2:])
    return {(row["which"], int(row["tokens"]), row["contestant"]): row for row in rows}


def test_a_small_upscaler_is_measured_for_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["--sides", "24", "48", "--size", "nano", "--mechanisms", "nala", "softmax-materialised"]
    main(["memory", *words, "--output", str(tmp_path)])
    rows = table(tmp_path)
    assert {row["status"] for row in rows.values()} == {"measured"} and len(rows) == 8
    scores = 2 * 48**4 * 4  # two heads, float32
    inference = float(rows["inference", 48**2, "softmax-materialised"]["peak_mb"]) * MB
    assert 2 * scores < inference < 4 * scores
    training = float(rows["training step", 48**2, "softmax-materialised"]["peak_mb"]) * MB
    assert training > 4 * scores  # each of the four layers keeps its weights
    for (which, tokens, name), row in rows.items():
        other = float(rows[which, tokens, "softmax-materialised"]["peak_mb"])
        if name == "nala/auto":
            expected = 100 * (1 - float(row["peak_mb"]) / other)
            assert float(row["less_than_materialised"]) == pytest.approx(expected, abs=0.01)
    assert "published: 92.3 % at 70k tokens" in capsys.readouterr().out
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")


def test_what_does_not_fit_is_computed_by_its_law_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def peak(case: Upscaling) -> Peak:
        square = 30 * case.tokens**2 if case.contestant == "softmax-materialised" else 0
        return Peak(1000 * MB + 500 * case.tokens - 1000 * MB * (square > 0) + square, 1e-3)

    monkeypatch.setattr(memory, "_peak", peak)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 4000 * MB)
    main(["memory", "--sides", "32", "64", "265", "512", "--size", "nano", "--output", str(tmp_path)])
    rows = table(tmp_path)
    expected = (500 * 265**2 + 30 * 265**4) / MB
    row = rows["training step", 265**2, "softmax-materialised"]
    assert row["status"] == "extrapolated" and row["note"].startswith("from 1024 and 4096 tokens: needs about 155.")
    assert float(row["peak_mb"]) == pytest.approx(expected, rel=1e-5)
    larger = rows["training step", 512**2, "softmax-materialised"]
    assert larger["note"].startswith("from 1024 and 4096 tokens: needs about 2164")  # its own need, not the first's
    nala = rows["training step", 265**2, "nala/auto"]
    assert nala["status"] == "measured" and float(nala["peak_mb"]) == pytest.approx(1000 + 500 * 265**2 / MB, rel=1e-5)
    saved = 100 * (1 - float(nala["peak_mb"]) / expected)
    assert float(nala["less_than_materialised"]) == pytest.approx(saved, abs=1e-3)


def test_what_takes_too_long_or_has_nothing_to_go_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "_peak", lambda case: Peak(case.tokens * 1000, case.tokens * 1e-3))
    words = ["--sides", "32", "64", "128", "--size", "nano", "--mechanisms", "softmax", "--limit", "20"]
    main(["memory", *words, "--output", str(tmp_path)])
    row = table(tmp_path)["inference", 128**2, "softmax"]
    assert (row["status"], row["peak_mb"]) == ("extrapolated", "16.384")
    assert row["note"] == "from 1024 and 4096 tokens: would take about 66 s, --limit is 20"  # 4.1 s times 16
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1)
    main(["memory", *words, "--output", str(tmp_path)])
    row = table(tmp_path)["inference", 128**2, "softmax"]
    assert (row["status"], row["peak_mb"]) == ("skipped", "") and "no two smaller ones that fit" in row["note"]


def test_the_sentence_beside_the_published_figure_takes_the_nearest_size():
    rows = [
        Row("inference", tokens, name, mb, status)
        for tokens, nala, softmax in ((4096, 10.0, 20.0), (70225, 10.0, 200.0))
        for name, mb, status in (("nala/auto", nala, "measured"), ("softmax-materialised", softmax, "extrapolated"))
    ]
    (line,) = beside_published(compared(rows))
    assert line == (
        "inference at 70225 tokens: nala/auto needs 95.0 % less than softmax with its scores in memory (measured, the "
        "other extrapolated); published: 92.3 % at 70k tokens"
    )


def test_the_backend_of_a_network_is_switched_for_a_while():
    before = BACKENDS["auto"]
    called = []
    BACKENDS["counting"] = lambda *arguments: called.append(1) or BACKENDS["plain"](*arguments)
    try:
        for contestant in ("nala/counting", "nala/plain"):
            Upscaling(contestant, "nano", 2, 8, "cpu", True).prepare()()
        assert len(called) == 4  # the layers of the first
        with pytest.raises(ZeroDivisionError), computed_as("nala/counting"):
            _ = 1 / 0
    finally:
        del BACKENDS["counting"]
    assert BACKENDS["auto"] is before


def test_the_forms_of_softmax_train_alike():
    losses = []
    for contestant in ("softmax", "softmax-materialised"):
        step = Upscaling(contestant, "nano", 2, 8, "cpu", True).prepare()
        losses.append([step() for _ in range(3)])
    torch.testing.assert_close(*losses)
    assert losses[0][2] != losses[0][0]


def test_a_picture_of_rows_that_are_partly_missing(tmp_path: Path):
    rows = [Row("inference", 64, "softmax", None, "skipped"), Row("inference", 64, "nala/auto", 2.0, "extrapolated")]
    draw(rows, tmp_path / "memory.png", "title")
    assert (tmp_path / "memory.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--size", "ligth"], "did you mean 'light'"),
        (["--scale", "5"], "it must be one of 2, 3, 4"),
        (["--sides", "0"], "'0' is no whole number from 1 up"),
        (["--backends", "chunky"], "backend='chunky' is unknown"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], line: str):
    with pytest.raises(UserError, match=line):
        main(["memory", *words])
