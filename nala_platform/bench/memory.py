"""``nala bench memory``: peak memory of super-resolution against the number of tokens."""

import sys
from argparse import Namespace

from nala_platform.arguments import Arguments, path, positive, seconds
from nala_platform.bench.contestants import FLOOR, MATERIALISED, QUADRATIC, contestants
from nala_platform.bench.growth import linear, quadratic
from nala_platform.bench.machine import check_device, describe
from nala_platform.bench.memory_report import EXTRAPOLATED, MEASURED, SKIPPED, Row, compared, draw, print_table
from nala_platform.bench.output import ready, write_csv
from nala_platform.bench.peak import Failed, Peak, allocated_growth, free_bytes, preload, readable, resident_growth
from nala_platform.bench.turns import said
from nala_platform.bench.upscaling import Upscaling
from nala_platform.errors import UserError, look_up
from nala_platform.models.upscaler import SCALES, SIZES

PASSES = {True: "training step", False: "inference"}
_SMALL = (8, 10)  # pixels a side: enough to load the code, and what is compiled sees that they vary
_SPARE = 0.9  # of the free memory: the machine goes on using some
_WHAT = """\
Peak memory of the upscaler (one training step with its optimizer, and one inference) on square pictures whose every
pixel is a token of every layer, each in a process of its own: NaLa, softmax through torch's fused kernel, and softmax
with the N x N scores in memory. A size that does not fit, or would take longer than --limit, is computed from the two
largest measured ones and labelled "extrapolated": b N + c N^2 where the scores are in memory, a + b N elsewhere."""


def main(words: list[str]) -> None:
    """Measure, print a table, and with ``--output`` write ``memory.csv`` and ``memory.png``.

    Raises:
        UserError: a wrong option.
    """
    options = _parser().read(words)
    look_up(SIZES, options.size, option="--size")
    if options.scale not in SCALES:
        raise UserError(f"--scale {options.scale}: it must be one of {', '.join(map(str, SCALES))}")
    device = check_device(options.device)
    ready(options.output)
    names = [name for name in contestants(options.mechanisms, options.backends) if name != FLOOR]
    machine = describe(device)
    about = f"Upscaler {options.size!r} x{options.scale}, batch 1, float32, {device}"
    print(f"{machine}\n{about}; peaks are those beside the weights and the pictures", flush=True)
    preload("nala_platform.bench.upscaling")
    rows: list[Row] = []
    for is_training in (True, False):
        for name in names:
            case = Upscaling(name, options.size, options.scale, 1, device, is_training)
            rows += _against_size(case, options)
            if options.output is not None:
                so_far = compared(rows)  # it may be interrupted
                write_csv(options.output / "memory.csv", [machine, about], Row._fields, so_far)
    rows = compared(rows)
    print_table(rows)
    if options.output is not None:
        draw(rows, options.output / "memory.png", f"{about}\n{machine}")
        print(f"written: {options.output / 'memory.csv'}, {options.output / 'memory.png'}")


def _parser() -> Arguments:
    parser = Arguments("nala bench memory", _WHAT)
    sides = [32, 64, 128, 265, 512]
    parser.add_argument(
        "--sides", type=positive, nargs="+", default=sides, help=f"pixels ({' '.join(map(str, sides))})"
    )
    parser.add_argument("--mechanisms", nargs="+", default=["nala", "softmax", MATERIALISED], help="nala softmax …")
    parser.add_argument("--backends", nargs="+", default=["auto"], help="of nala (auto)")
    parser.add_argument("--size", default="light", help=f"{', '.join(SIZES)} (light)")
    parser.add_argument("--scale", type=positive, default=2, help="2, 3 or 4 (2)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: cuda if there is one")
    parser.add_argument("--limit", type=seconds, default=120.0, help="what would take longer is not run (120 s)")
    parser.add_argument("--output", type=path, help="a folder for memory.csv and memory.png")
    return parser


def _against_size(case: Upscaling, options: Namespace) -> list[Row]:
    """The rows of one contestant, from the smallest size up; once one did not fit, no larger one is tried."""
    measured: list[tuple[int, Peak]] = []
    rows, reason = [], ""
    for side in sorted(set(options.sides)):
        case = case._replace(side=side)
        reason = _reason_not_to_run(case, measured, options.limit) or reason
        if not reason:
            print(f"  {PASSES[case.is_training]}, {case.contestant}, {case.tokens} tokens", file=sys.stderr, flush=True)
            try:
                peak = _peak(case)
                measured.append((case.tokens, peak))
                rows.append(Row(PASSES[case.is_training], case.tokens, case.contestant, peak.grown / 1e6, MEASURED))
                continue
            except (Failed, MemoryError, RuntimeError) as error:
                reason = f"failed: {said(error)}"
        rows.append(_computed(case, measured, reason))
    return rows


def _peak(case: Upscaling) -> Peak:
    if case.device == "cuda":
        return allocated_growth(case.prepare)
    return resident_growth(case.prepare, *(case._replace(side=side).prepare for side in _SMALL))


def _reason_not_to_run(case: Upscaling, measured: list[tuple[int, Peak]], limit: float) -> str:
    free = _SPARE * free_bytes(case.device)
    needed = 1.05 * _law(case, measured) if len(measured) > 1 else case.guessed_bytes()
    if needed > free:
        return f"needs about {readable(needed)}, {readable(free)} are free"
    if measured:
        tokens, peak = measured[-1]
        power = 2 if case.contestant in QUADRATIC else 1
        duration = peak.seconds * (case.tokens / tokens) ** power
        if duration > limit:
            return f"would take about {duration:.0f} s, --limit is {limit:g}"
    return ""


def _law(case: Upscaling, measured: list[tuple[int, Peak]]) -> float:
    grow = quadratic if case.contestant in (MATERIALISED, "nala/reference") else linear
    return grow([(tokens, peak.grown) for tokens, peak in measured], case.tokens)


def _computed(case: Upscaling, measured: list[tuple[int, Peak]], reason: str) -> Row:
    row = Row(PASSES[case.is_training], case.tokens, case.contestant, None, SKIPPED, note=reason)
    if len(measured) < 2:
        return row._replace(note=f"{reason}; --sides has no two smaller ones that fit, to extrapolate from")
    of = " and ".join(str(tokens) for tokens, _ in measured[-2:])
    mb = _law(case, measured) / 1e6
    return row._replace(peak_mb=mb, status=EXTRAPOLATED, note=f"from {of} tokens: {reason}")
