"""``nala bench model``: a task's whole training step and inference, and the attention's part of them."""

import contextlib
import io
import tempfile
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import NamedTuple

from nala_platform import argv
from nala_platform.arguments import Arguments, path, positive, seconds
from nala_platform.attention import ATTENTION, nala_attention
from nala_platform.attention.nala import BACKENDS
from nala_platform.bench.captured import CALLBACK, Captured, Work
from nala_platform.bench.contestants import MATERIALISED
from nala_platform.bench.machine import describe, waiter
from nala_platform.bench.operator import Call, recording
from nala_platform.bench.output import cell, columns, ready, show, write_csv
from nala_platform.bench.switch import computed_as
from nala_platform.bench.turns import take_turns
from nala_platform.errors import UserError, look_up, near
from nala_platform.experiment import run

CONFIGURED = "configured"
PASSES = {True: "training step", False: "inference"}
_WHAT = """\
The whole training step (forward, loss, backward, clip, optimizer) and the inference of a task's network on one batch
of its data, built as nala fit builds it (--task and every key of nala fit), contestants taking turns. "configured" is
the attention that the recipe names; others are set by --model.network.attention. Networks take no backend: for each
contestant the row "auto" of NaLa's backends is another one for the while. attention ms: the attention calls of such a
step, recorded with their inputs and run again on their own, forward and backward."""


class Row(NamedTuple):
    """A line of the table and of the CSV file."""

    which: str
    contestant: str
    ms: float
    attention_ms: float
    attention_share: float
    calls: int
    plain_over_this: float | None
    """time of the step with the same attention and backend plain, over this one's"""
    first_over_this: float
    """time of the first contestant's step over this one's"""
    samples: int


def main(words: list[str]) -> None:
    """Measure, print a table, and write it as ``model.csv`` with ``--output``.

    Raises:
        UserError: a wrong option, or the run cannot be built.
    """
    parser = Arguments("nala bench model", _WHAT)
    parser.add_argument("--attentions", nargs="+", default=[CONFIGURED, "softmax"], help=f"{CONFIGURED} softmax …")
    parser.add_argument("--backends", nargs="+", default=["plain", "auto"], help="of nala: plain auto")
    parser.add_argument("--repeats", type=positive, default=10, help="samples of each, of which the median counts (10)")
    parser.add_argument("--limit", type=seconds, default=60.0, help="seconds for a contestant and pass (60)")
    parser.add_argument("--output", type=path, help="a folder for model.csv")
    options, typed = parser.split(words)
    known = [CONFIGURED, *ATTENTION, MATERIALISED]
    for attention in options.attentions:
        if attention not in known:
            raise UserError(f"no attention {attention!r}{near(attention, known)} Known: {', '.join(known)}")
    for backend in options.backends:
        look_up(BACKENDS, backend, option="backend")
    ready(options.output)
    works = {name: capture(typed, name) for name in dict.fromkeys(options.attentions)}
    device = next(iter(works.values())).device.type
    about = f"{argv.typed_value(typed, '--task') or 'run'}, {_shapes(next(iter(works.values())))}"
    machine = describe(device)
    print(f"{machine}\n{about}", flush=True)
    rows = []
    for is_training in (True, False):
        rows += _pass(works, options.backends, is_training, options.repeats, options.limit)
    _print(rows)
    if options.output is not None:
        write_csv(options.output / "model.csv", [machine, about], Row._fields, rows)
        print(f"written: {options.output / 'model.csv'}")


def capture(typed: list[str], attention: str) -> Work:
    """The task and a batch as ``nala fit`` with ``typed`` and this attention would have them at its first step."""
    mechanism = attention.removesuffix("-materialised")
    chosen = () if attention == CONFIGURED else ("--model.network.attention", mechanism)
    with tempfile.TemporaryDirectory() as folder:
        place = ("--runs_dir", folder, "--trainer.num_sanity_val_steps", "0", "--trainer.callbacks+", CALLBACK)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                run(argv.expand(["fit", *typed, *chosen, *place]))
        except Captured as captured:
            captured.work.task.to(captured.work.device)  # Lightning takes the network off a GPU when a run ends
            return captured.work
    raise UserError("the run ended before its first step: let it train")


def _pass(works: dict[str, Work], backends: list[str], is_training: bool, repeats: int, limit: float) -> list[Row]:
    contestants: dict[str, tuple[str, str]] = {}  # name -> attention, what `computed_as` is told
    calls: dict[str, list[Call]] = {}
    for attention, work in works.items():
        with recording(work.task.network) as found:
            (work.train if is_training else work.infer)()
        calls[attention] = list(found)
        if _has_nala(found):
            contestants |= {f"{attention}/{backend}": (attention, f"nala/{backend}") for backend in backends}
        else:
            contestants[attention] = (attention, attention)
    steps: dict[str, Callable[[], object]] = {}
    for name, (attention, how) in contestants.items():
        steps[name] = partial(_step, works[attention], how, is_training)
        steps[f"attention of {name}"] = partial(_calls, calls[attention], how, is_training)
    wait = waiter(next(iter(works.values())).device.type)
    samples, failed = take_turns(steps, repeats=repeats, limit=limit, wait=wait)
    for name, reason in failed.items():
        raise UserError(f"{PASSES[is_training]} of {name} failed: {reason}")
    times = {name: 1e3 * median(found) for name, found in samples.items()}
    return [
        _row(PASSES[is_training], name, attention, times, len(calls[attention]), len(samples[name]))
        for name, (attention, _) in contestants.items()
    ]


def _has_nala(calls: list[Call]) -> bool:
    return any(call.function is nala_attention for call in calls)


def _step(work: Work, how: str, is_training: bool) -> None:
    with computed_as(how):
        (work.train if is_training else work.infer)()


def _calls(calls: list[Call], how: str, is_training: bool) -> None:
    with computed_as(how):
        for call in calls:
            call.run(is_training=is_training)


def _row(which: str, name: str, attention: str, times: dict[str, float], calls: int, samples: int) -> Row:
    plain, mine = times.get(f"{attention}/plain"), times[name]
    alone = times[f"attention of {name}"]
    first = next(iter(times.values()))
    return Row(which, name, mine, alone, alone / mine, calls, plain and plain / mine, first / mine, samples)


def _shapes(work: Work) -> str:
    size = sum(parameter.numel() for parameter in work.task.network.parameters())
    shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in work.batch.items() if hasattr(value, "shape"))
    return f"{type(work.task.network).__name__} with {size / 1e6:.2f} M parameters, batch of {shapes}"


def _print(rows: list[Row]) -> None:
    numbers = ("ms", "attention ms", "its share", "calls", "plain / this", f"{rows[0].contestant} / this")
    table = columns("medians of samples taken in turns", ("", "attention"), numbers)
    for row in rows:
        if row.which != rows[0].which and row.contestant == rows[0].contestant:
            table.add_section()
        cells = (cell(row.ms, 2), cell(row.attention_ms, 2), f"{100 * row.attention_share:.0f} %", str(row.calls))
        ratios = (cell(row.plain_over_this, 2), cell(row.first_over_this, 2))
        table.add_row(row.which, row.contestant, *cells, *ratios)
    show(table)
