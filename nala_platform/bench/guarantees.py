"""``nala bench guarantees``: what resume, average, log and checks cost a training step, against a bare PyTorch loop."""

import contextlib
import io
import tempfile
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from nala_platform import argv
from nala_platform.arguments import Arguments, path, positive
from nala_platform.bench.rounds import CALLBACK, ROUND, Finished, Loops
from nala_platform.errors import UserError
from nala_platform.runs import write_atomic

# One epoch after the other without a validation, which is no part of a step. What is typed beats it.
BARE_OF_VALIDATION = (
    *("--trainer.limit_val_batches", "0", "--trainer.num_sanity_val_steps", "0"),
    *("--trainer.max_epochs", "-1", "--trainer.max_steps", "1000000"),
)
BARE, AVERAGED, OURS = "bare PyTorch loop", "bare loop with averaging", "nala fit"


class Row(NamedTuple):
    """One figure of the table and of the CSV file."""

    task: str
    what: str
    value: float
    unit: str


def main(words: list[str]) -> None:
    """Measure, print a table, write it as CSV with ``--output``.

    Raises:
        UserError: the run cannot be made, or ends before enough steps are measured.
    """
    parser = Arguments(
        "nala bench guarantees", "A step of nala fit against one of a bare PyTorch loop, taken in turns."
    )
    parser.add_argument("--steps", type=positive, default=60, help=f"of each loop, in rounds of {ROUND} (60)")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: this process's own time, for a busy machine (wall)",
    )
    parser.add_argument("--output", type=path, help="a CSV file to write")
    options, typed = parser.split(words)
    found = measure(typed, max(1, round(options.steps / ROUND)), options.clock)
    name = argv.typed_value(typed, "--task") or "run"
    rows = [Row(name, *figures) for figures in _figures(found)]
    _print(rows, len(found.rounds[BARE]))
    if options.output is not None:
        lines = ["task,what,value,unit", *(f"{row.task},{row.what},{row.value:.6g},{row.unit}" for row in rows)]
        write_atomic(options.output, "\n".join(lines) + "\n")


def measure(typed: list[str], rounds: int, clock: str) -> Finished:
    """Train as ``nala fit`` with ``typed`` does, and between its rounds with the bare loops; the times."""
    Loops.names = (BARE, AVERAGED, OURS)
    with tempfile.TemporaryDirectory() as folder:
        mine = ("--trainer.callbacks+", CALLBACK, "--trainer.callbacks.rounds", str(rounds))
        place = ("--runs_dir", folder, "--trainer.callbacks.clock", clock)
        words = argv.expand(["fit", *BARE_OF_VALIDATION, *typed, *mine, *place])
        from nala_platform.experiment import run  # heavy: torch and Lightning

        try:
            with contextlib.redirect_stdout(io.StringIO()):
                run(words)
        except Finished as finished:
            return finished
    raise UserError(f"the run ended before {rounds + 1} rounds of {ROUND} steps: let it train longer, or lower --steps")


def _figures(found: Finished) -> list[tuple[str, float, str]]:
    figures = []
    for name, times in found.rounds.items():
        figures.append((name, 1e3 * median(times), "ms a step"))
        if name == BARE:
            continue
        # of each round with the bare one beside it: what else the machine did then has slowed both
        ratios = [time / bare for time, bare in zip(times, found.rounds[BARE], strict=True)]
        figures.append((f"{name} / {BARE}", median(ratios), "ratio"))
    return [*figures, *found.checkpoint]


def _print(rows: list[Row], rounds: int) -> None:
    title = f"{rows[0].task}: medians over {rounds} rounds of {ROUND} steps, the loops taken in turns"
    table = Table(title=title, title_justify="left")
    for column in ("", "value", ""):
        table.add_column(column, justify="right" if column == "value" else "left")
    for row in rows:
        table.add_row(row.what, f"{row.value:.3f}", row.unit)
    Console().print(table)
