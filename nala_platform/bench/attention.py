"""``nala bench attention``: time and memory of attention mechanisms and of NaLa's backends against the length."""

import sys
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Iterator

from nala_platform.arguments import Arguments, path, positive, seconds
from nala_platform.bench.attention_plot import draw
from nala_platform.bench.attention_report import Row, compared, print_tables
from nala_platform.bench.contestants import DTYPES, QUADRATIC, Case, Setting, contestants, kernel
from nala_platform.bench.machine import check_device, copy_speed, describe, waiter
from nala_platform.bench.output import ready, write_csv
from nala_platform.bench.peak import Failed, allocated_growth, free_bytes, preload, readable, resident_growth
from nala_platform.bench.turns import said, take_turns
from nala_platform.errors import UserError, look_up

PASSES = {False: "forward", True: "forward+backward"}
_SMALL = (64, 96)  # tokens: enough to load the code, and what is compiled sees that they vary
_WHAT = """\
Time and peak memory of one attention, contestants taking turns: nala/<backend>, the other mechanisms, softmax (torch's
fused kernel), softmax-materialised (the same with the N x N scores in memory), and floor: NaLa's two matrix products
alone, on features that are ready, not causal."""


def main(words: list[str]) -> None:
    """Measure, print tables, and with ``--output`` write ``attention.csv`` and ``attention.png``.

    Raises:
        UserError: a wrong option, or nothing could be measured.
    """
    options = _parser().read(words)
    if options.head_dim % 4 and options.rope:
        raise UserError(f"--head-dim {options.head_dim}: rotary tables need a multiple of 4, or add --no-rope")
    look_up(DTYPES, options.dtype, option="--dtype")
    device = check_device(options.device)
    names = contestants(options.mechanisms, options.backends or _fast_backends())
    ready(options.output)
    setting = Setting(
        options.batch, options.heads, options.head_dim, options.dtype, device, options.causal, options.rope
    )
    machine, copied = describe(device), copy_speed(device)
    print(f"{machine}; copies {copied / 1e9:.1f} GB/s (read + written)")
    print(f"{_told(setting)}; softmax here is torch's kernel {kernel(setting, max(options.lengths))!r}", flush=True)
    preload("nala_platform.bench.contestants")
    rows: list[Row] = []
    for found in _measured(names, setting, options):
        rows += found
        if options.output is not None:
            so_far = compared(rows, copied)  # it may be interrupted
            write_csv(options.output / "attention.csv", [machine, _told(setting)], Row._fields, so_far)
    if not any(row.ms for row in rows):
        raise UserError(f"nothing could be measured: {rows[0].contestant}: {rows[0].note}")
    rows = compared(rows, copied)
    print_tables(rows)
    if options.output is not None:
        draw(rows, options.output / "attention.png", f"{_told(setting)}\n{machine}")
        print(f"written: {options.output / 'attention.csv'}, {options.output / 'attention.png'}")


def _parser() -> Arguments:
    parser = Arguments("nala bench attention", _WHAT)
    parser.add_argument("--lengths", type=positive, nargs="+", default=[1024, 4096, 16384], help="tokens N")
    parser.add_argument("--head-dim", type=positive, default=64, help="D (64)")
    parser.add_argument("--heads", type=positive, default=2, help="(2)")
    parser.add_argument("--batch", type=positive, default=1, help="(1)")
    parser.add_argument("--mechanisms", nargs="+", default=["nala", "softmax", "linear"], help="nala softmax linear …")
    parser.add_argument("--backends", nargs="+", help="of nala: plain … (all but reference and auto)")
    parser.add_argument("--dtype", default="float32", help=", ".join(DTYPES))
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: cuda if there is one")
    parser.add_argument("--backward", action="store_true", help="forward+backward beside forward")
    parser.add_argument("--causal", action="store_true", help="each token sees those before it")
    parser.add_argument("--rope", action=BooleanOptionalAction, default=True, help="rotary positions (yes)")
    parser.add_argument("--repeats", type=positive, default=7, help="samples of each, of which the median counts (7)")
    parser.add_argument("--limit", type=seconds, default=30.0, help="seconds for a contestant at a length (30)")
    parser.add_argument("--memory", action=BooleanOptionalAction, default=True, help="peak memory too (yes)")
    parser.add_argument("--output", type=path, help="a folder for attention.csv and attention.png")
    return parser


def _fast_backends() -> list[str]:
    from nala_platform.attention.nala import BACKENDS

    return [name for name in BACKENDS if name not in ("reference", "auto")]


def _told(setting: Setting) -> str:
    about = f"batch {setting.batch}, {setting.heads} heads of {setting.head_dim}, {setting.dtype}, {setting.device}"
    return f"{about}, {'' if setting.is_causal else 'not '}causal, {'with' if setting.has_rope else 'without'} rope"


def _measured(names: list[str], setting: Setting, options: Namespace) -> Iterator[list[Row]]:
    """The rows of one pass and length after the other."""
    for is_training in (False, True) if options.backward else (False,):
        last: dict[str, Row] = {}
        for length in sorted(set(options.lengths)):
            print(f"  {PASSES[is_training]}, N = {length}", file=sys.stderr, flush=True)
            cases = {name: Case(name, setting, length, is_training) for name in names}
            reasons = {name: _reason_to_skip(case, last.get(name), options.limit) for name, case in cases.items()}
            rows = _row_each(cases, reasons, options)
            last |= {row.contestant: row for row in rows if row.ms is not None}
            yield rows


def _reason_to_skip(case: Case, last: Row | None, limit: float) -> str:
    """Why not even to try; empty: try."""
    needed, free = case.predicted_bytes(), free_bytes(case.setting.device)
    if needed > free:
        return f"skipped: would need about {readable(needed)}, {readable(free)} are free"
    if last is not None and last.ms is not None:
        law = 2 if case.contestant in QUADRATIC else 1
        duration = last.ms / 1e3 * (case.length / last.length) ** law
        if duration > limit:
            return f"skipped: would take about {duration:.0f} s a run, --limit is {limit:g}"
    return ""


def _row_each(cases: dict[str, Case], reasons: dict[str, str], options: Namespace) -> list[Row]:
    works, reasons = {}, dict(reasons)
    for name, case in cases.items():
        if not reasons[name]:
            works[name] = case.prepare()
    wait = waiter(next(iter(cases.values())).setting.device)
    samples, failed = take_turns(works, repeats=options.repeats, limit=options.limit, wait=wait)
    works.clear()  # their inputs are not to be in the way of what follows
    reasons |= {name: f"failed: {text}" for name, text in failed.items()}
    rows = []
    for name, case in cases.items():
        row = Row.of(case, PASSES[case.is_training], samples.get(name, []), reasons[name])
        rows.append(_with_memory(row, case) if options.memory and row.ms is not None else row)
    return rows


def _with_memory(row: Row, case: Case) -> Row:
    try:
        if case.setting.device == "cuda":
            peak = allocated_growth(case.prepare)
        else:
            # compiled for its length before it counts; elsewhere a first run would leave holes in the heap
            own = [case.length] if case.contestant == "nala/compiled" else []
            before = [case._replace(length=length).prepare for length in (*_SMALL, *own)]
            peak = resident_growth(case.prepare, *before)
        return row._replace(peak_mb=peak.grown / 1e6)
    except (Failed, MemoryError, RuntimeError) as error:
        return row._replace(note=f"no memory figure: {said(error)}")
