"""``nala bench attention``: its figures mean what their columns say, and a mistake is one line."""

import csv
from pathlib import Path

import pytest
import torch

from nala_platform.attention import softmax_attention
from nala_platform.attention.nala import BACKENDS
from nala_platform.bench import attention, contestants, main
from nala_platform.bench.attention_report import Row, compared
from nala_platform.bench.contestants import Case, Setting
from nala_platform.errors import UserError

SETTING = Setting(batch=1, heads=2, head_dim=16, dtype="float32", device="cpu", is_causal=False, has_rope=True)
SMALL = ["--head-dim", "16", "--heads", "1", "--repeats", "3"]


def table(folder: Path) -> list[dict[str, str]]:
    lines = (folder / "attention.csv").read_text().splitlines()
    assert [line[0] for line in lines[:3]] == ["#", "#", "w"]
    return list(csv.DictReader(lines[2:]))


def test_the_ratios_are_those_of_the_times_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["--lengths", "64", "128", "--backends", "plain", "--backward", "--no-memory", "--output", str(tmp_path)]
    main(["attention", *words, *SMALL])
    rows = {(row["which"], row["length"], row["contestant"]): row for row in table(tmp_path)}
    assert {name for _, _, name in rows} == {"nala/plain", "softmax", "linear", "floor"}
    assert len(rows) == 2 * 2 * 4
    for (which, length, _), row in rows.items():
        ms = float(row["ms"])
        assert 0 < float(row["fastest_ms"]) <= ms <= float(row["slowest_ms"]) and row["samples"] == "3"
        for column, name in (("plain_over_this", "nala/plain"), ("softmax_over_this", "softmax")):
            assert float(row[column]) == pytest.approx(float(rows[which, length, name]["ms"]) / ms, rel=1e-4)
        floor = float(rows[which, length, "floor"]["ms"])
        assert float(row["this_over_floor"]) == pytest.approx(ms / floor, rel=1e-4)
        assert float(row["gb_per_s"]) == pytest.approx(float(row["bytes_moved"]) / ms / 1e6, rel=1e-4)
        assert row["exponent"] and not row["exponent_far"] and not row["peak_mb"]
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "threads, torch" in printed and "torch's kernel 'flash'" in printed and "plain / this" in printed


def test_what_must_be_moved_is_counted_by_hand():
    case = Case("nala/plain", SETTING, 100, is_training=False)
    tensor, tables = 2 * 100 * 16 * 4, 2 * 100 * 16 * 4
    assert case.bytes_moved() == 4 * tensor + tables  # q, k, v in, the result out
    assert case._replace(is_training=True).bytes_moved() == 11 * tensor + 2 * tables  # + q, k, v, gradient; 3 gradients
    assert case._replace(contestant="floor").bytes_moved() == 6 * tensor


def test_the_exponents_of_times_from_a_closed_form():
    lengths = (64, 1024, 4096, 16384)
    rows = [
        Row.of(Case(name, SETTING, length, False), "forward", [scale * length**power], "")
        for length in lengths
        for name, scale, power in (("nala/plain", 3e-6, 1.0), ("softmax", 2e-9, 1.5))
    ]
    flat = rows[0]._replace(ms=9 * rows[0].ms)  # a fixed cost at the shortest length
    found = {(row.length, row.contestant): row for row in compared([flat, *rows[1:]], 1e9)}
    assert found[64, "softmax"].exponent == pytest.approx(1.5) and found[64, "softmax"].exponent_far == pytest.approx(
        1.5
    )
    assert found[64, "nala/plain"].exponent < 0.9 and found[64, "nala/plain"].exponent_far == pytest.approx(1.0)
    assert found[1024, "nala/plain"].softmax_over_this == pytest.approx(2e-9 * 1024**1.5 / (3e-6 * 1024))
    assert found[1024, "softmax"].this_over_floor is None


@pytest.mark.parametrize("name", ["nala/plain", "softmax", "softmax-materialised", "linear"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_contestant_computes_what_its_name_says(name: str, is_causal: bool):
    torch.manual_seed(0)
    case = Case(name, SETTING._replace(is_causal=is_causal), 63, is_training=True)
    work = case.prepare()
    compute, tensors, gradient = work.args
    rope = contestants._tables(case)
    mechanism = contestants.ATTENTION[name.partition("/")[0].removesuffix("-materialised")]
    expected = mechanism(*tensors, rope=rope, is_causal=is_causal, backend="reference")
    torch.testing.assert_close(compute(*tensors), expected, rtol=1e-4, atol=1e-5)
    grads = torch.autograd.grad(expected, tensors, gradient)
    torch.testing.assert_close(work(), grads, rtol=1e-3, atol=1e-4)


def test_materialised_softmax_has_the_scores_in_memory_and_the_fused_one_has_not():
    saved = {}
    for name in ("softmax", "softmax-materialised"):
        work = Case(name, SETTING, 200, is_training=True).prepare()
        compute, tensors, _ = work.args
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, into=shapes: into.append(tuple(x.shape)) or x, id):
            compute(*tensors)
        saved[name] = any(shape[-2:] == (200, 200) for shape in shapes)
    assert saved == {"softmax": False, "softmax-materialised": True}
    assert softmax_attention is contestants.softmax_attention


def test_what_does_not_fit_is_a_row_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention, "free_bytes", lambda device: 5_000_000)
    words = ["--mechanisms", "nala", "softmax-materialised", "--backends", "plain", "--lengths", "64", "1024"]
    main(["attention", *words, *SMALL, "--no-memory", "--output", str(tmp_path)])
    rows = {(row["length"], row["contestant"]): row for row in table(tmp_path)}
    left_out = rows["1024", "softmax-materialised"]
    assert left_out["note"] == "skipped: would need about 12.6 MB, 5.0 MB are free"  # three matrices of scores
    assert left_out["ms"] == "" and left_out["samples"] == "0"
    assert rows["64", "softmax-materialised"]["ms"] and rows["1024", "nala/plain"]["ms"]


def test_what_would_take_too_long_or_cannot_run_is_a_row_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_):
        raise UserError("no such card")

    monkeypatch.setitem(BACKENDS, "never", refuse)
    words = ["--mechanisms", "nala", "softmax", "--backends", "never", "--lengths", "64", "65536", "--limit", "1e-5"]
    main(["attention", *words, *SMALL, "--no-memory", "--output", str(tmp_path)])
    rows = {(row["length"], row["contestant"]): row for row in table(tmp_path)}
    assert rows["64", "nala/never"]["note"] == "failed: UserError: no such card"
    assert rows["64", "softmax"]["samples"] == "1"  # the first one is over the limit
    assert rows["65536", "softmax"]["note"].startswith("skipped: would take about ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--backends", "chunky"], "backend='chunky' is unknown"),
        (["--backends", "plian"], "did you mean 'plain'"),
        (["--mechanisms", "sofmax"], "did you mean 'softmax'"),
        (["--dtype", "float23"], "did you mean 'float32'"),
        (["--lengths", "0"], "'0' is no whole number from 1 up"),
        (["--limit", "-1"], "'-1' is no number of seconds above 0"),
        (["--head-dim", "6"], "add --no-rope"),
        (["--lenghts", "64"], "did you mean '--lengths'"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], line: str):
    with pytest.raises(UserError, match=line) as caught:
        main(["attention", *words])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bench", ["attention", "memory", "model"])
def test_an_output_that_is_no_folder_is_one_line(bench: str, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--output .*file: .*: give a folder, or the name of a new one"):
        main([bench, "--output", str(tmp_path / "file")])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_no_device_is_exit_code_2(zygote, tmp_path: Path):
    done = zygote.call(tmp_path, "bench", "attention", "--device", "cuda", code=2)
    assert done.stderr == (
        "nala: error: --device cuda: torch sees no CUDA device here; --device cpu measures on the processor\n"
    )
