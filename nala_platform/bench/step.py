"""``nala bench step``: what one more token costs a language model's attention, against the tokens before it.

NaLa keeps one matrix a head, whatever came before; softmax keeps all keys and values and reads them at each token.

Shapes: B batch, H heads, N tokens before, D head size.
"""

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from matplotlib.figure import Figure

from nala_platform.arguments import Arguments, path, positive
from nala_platform.attention import nala_attention, nala_step, softmax_attention
from nala_platform.bench import generation
from nala_platform.bench.attention_plot import GREY, against_tokens
from nala_platform.bench.contestants import DTYPES, SOFTMAX
from nala_platform.bench.growth import exponent
from nala_platform.bench.machine import check_device, describe, waiter
from nala_platform.bench.output import cell, columns, ready, show, write_csv
from nala_platform.bench.turns import CLOCKS, take_turns
from nala_platform.errors import UserError, look_up
from nala_platform.models.language_config import SIZES
from nala_platform.runs import save_figure

NALA, PREFIX = "nala", "nala, whole prefix"
"""The step, and what it saves: the causal form over all tokens again for the one behind them."""
_WHAT = """\
Time of one more token in generation, and the bytes kept from the tokens before it, contestants taking turns: nala (its
recurrent step), softmax (torch's kernel on one query and all N keys, which stand ready in memory), and nala, whole
prefix (the causal form over all N tokens again). With --model: of a whole language model, beside a bare PyTorch loop
over its modules."""
LENGTHS = (1024, 4096, 16384, 65536)


class Row(NamedTuple):
    """A line of the CSV file."""

    length: int
    """tokens before"""
    contestant: str
    ms: float
    """of one token, all heads, the median"""
    fastest_ms: float
    slowest_ms: float
    samples: int
    kept_bytes: int
    softmax_over_this: float
    exponent: float | None


def main(words: list[str]) -> None:
    """Measure, print a table, and with ``--output`` write ``step.csv`` and ``step.png``.

    Raises:
        UserError: a wrong option.
    """
    options = _parser().read(words)
    if options.model is not None:
        look_up(SIZES, options.model, option="--model")
        generation.measure(options)
        return
    look_up(DTYPES, options.dtype, option="--dtype")
    device = check_device(options.device)
    ready(options.output)
    about = [
        describe(device),
        f"batch {options.batch}, {options.heads} heads of {options.head_dim}, {options.dtype}, {device}, without rope; "
        f"{options.clock} clock",
    ]
    print("\n".join(about), flush=True)
    found: list[Row] = []
    for length in sorted(set(options.lengths or LENGTHS)):
        found += _measured(length, options, device)
    rows = _with_exponents(found)
    _print(rows)
    if options.output is not None:
        write_csv(options.output / "step.csv", about, Row._fields, rows)
        _draw(rows, options.output / "step.png", "\n".join(reversed(about)))
        print(f"written: {options.output / 'step.csv'}, {options.output / 'step.png'}")


def _parser() -> Arguments:
    parser = Arguments("nala bench step", _WHAT)
    default = f"{' '.join(map(str, LENGTHS))}; with --model {' '.join(map(str, generation.LENGTHS))}"
    parser.add_argument("--lengths", type=positive, nargs="+", help=f"tokens before the one, N ({default})")
    parser.add_argument("--model", nargs="?", const="nano", help=f"a whole model: {', '.join(SIZES)} (nano)")
    parser.add_argument("--head-dim", type=positive, default=64, help="D (64)")
    parser.add_argument("--heads", type=positive, default=8, help="(8)")
    parser.add_argument("--batch", type=positive, default=1, help="(1)")
    parser.add_argument("--dtype", default="float32", help=", ".join(DTYPES))
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: cuda if there is one")
    parser.add_argument(
        "--clock", choices=tuple(CLOCKS), default="wall", help="cpu: leaves out what others take (wall)"
    )
    parser.add_argument("--repeats", type=positive, default=15, help="samples of each, of which the median counts (15)")
    parser.add_argument("--output", type=path, help="a folder for step.csv and step.png, or step_model.csv and .png")
    return parser


def _measured(length: int, options: Namespace, device: str) -> list[Row]:
    with torch.no_grad():
        steps, kept = prepared(length, options.batch, options.heads, options.head_dim, options.dtype, device)
        samples, failed = take_turns(
            steps, repeats=options.repeats, limit=60.0, wait=waiter(device), clock=CLOCKS[options.clock]
        )
    for name, reason in failed.items():
        raise UserError(f"{name} after {length} tokens failed: {reason}")
    times = {name: [1e3 * second for second in seconds] for name, seconds in samples.items()}
    softmax = median(times[SOFTMAX])
    return [
        Row(length, name, median(ms), min(ms), max(ms), len(ms), kept[name], softmax / median(ms), None)
        for name, ms in times.items()
    ]


def prepared(
    length: int, batch: int, heads: int, size: int, dtype: str, device: str
) -> tuple[dict[str, Callable[[], object]], dict[str, int]]:
    """By contestant: what computes the output (B, H, 1, D) for a token behind ``length`` others, and the bytes kept."""
    shape = (batch, heads, length + 1, size)
    query, key, value = (torch.randn(shape, dtype=DTYPES[dtype], device=device) for _ in "qkv")
    before, last = slice(0, length), slice(length, None)
    _, state = nala_step(query[:, :, before], key[:, :, before], value[:, :, before])
    query_1, key_1, value_1 = (x[:, :, last].clone() for x in (query, key, value))
    steps: dict[str, Callable[[], object]] = {
        NALA: lambda: nala_step(query_1, key_1, value_1, state)[0],
        SOFTMAX: partial(softmax_attention, query_1, key, value),
        PREFIX: lambda: nala_attention(query, key, value, is_causal=True)[:, :, last],
    }
    cache = 2 * key[:, :, before].numel() * key.element_size()
    own = sum(part.numel() * part.element_size() for part in state)
    return steps, {NALA: own, SOFTMAX: cache, PREFIX: cache}


def _with_exponents(rows: list[Row]) -> list[Row]:
    grown = {}
    for name in (NALA, SOFTMAX, PREFIX):
        own = [row for row in rows if row.contestant == name]
        grown[name] = exponent([row.length for row in own], [row.ms for row in own])
    return [row._replace(exponent=grown[row.contestant]) for row in rows]


def _print(rows: list[Row]) -> None:
    numbers = ["ms a token", "softmax / this", "kept MB", "grows as N to the"]
    table = columns(f"one more token: medians of {rows[0].samples} samples taken in turns", ["N", "attention"], numbers)
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before.length != row.length:
            table.add_section()
        figures = cell(row.ms, 3), cell(row.softmax_over_this, 2), cell(row.kept_bytes / 1e6, 2), cell(row.exponent, 2)
        table.add_row(str(row.length), row.contestant, *figures)
    show(table)


def _draw(rows: list[Row], picture: Path, title: str) -> None:
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, name in enumerate((NALA, SOFTMAX, PREFIX)):
        own = [row for row in rows if row.contestant == name]
        lengths, slope = [row.length for row in own], own[0].exponent
        label = name if slope is None else f"{name}  (N to the {slope:.2f})"
        left.plot(lengths, [row.ms for row in own], color=f"C{place}", marker="os^"[place], label=label)
        if name != PREFIX:  # it keeps what softmax keeps
            kept = [row.kept_bytes / 1e6 for row in own]
            right.plot(lengths, kept, color=f"C{place}", marker="os^"[place], label=name)
    lengths = [row.length for row in rows]
    against_tokens(left, lengths, "one more token: time", "milliseconds")
    against_tokens(right, lengths, "kept from the tokens before", "MB")
    figure.suptitle(title, fontsize=9, color=GREY)
    save_figure(figure, picture)
