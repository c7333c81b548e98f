"""The rows of ``nala bench attention``: what is compared with what, as a table and as files."""

from statistics import median
from typing import NamedTuple

from rich.table import Table

from nala_platform.bench.contestants import FLOOR, PLAIN, SOFTMAX, Case
from nala_platform.bench.growth import exponent
from nala_platform.bench.output import cell, columns, show

FAR = 4096
"""Tokens from which on the second exponent is taken: below it, fixed costs flatten the line."""


class Row(NamedTuple):
    """A line of the CSV file. None: not measured, or nothing to compare with."""

    which: str
    """forward, or forward+backward"""
    length: int
    contestant: str
    bytes_moved: int
    ms: float | None
    fastest_ms: float | None
    slowest_ms: float | None
    samples: int
    peak_mb: float | None
    plain_over_this: float | None = None
    softmax_over_this: float | None = None
    this_over_floor: float | None = None
    peak_over_plain: float | None = None
    peak_over_softmax: float | None = None
    gb_per_s: float | None = None
    share_of_copy: float | None = None
    exponent: float | None = None
    exponent_far: float | None = None
    note: str = ""

    @classmethod
    def of(cls, case: Case, which: str, seconds: list[float], note: str) -> "Row":
        """One that is not compared yet."""
        ms = [1e3 * second for second in seconds]
        figures = (median(ms), min(ms), max(ms)) if ms else (None, None, None)
        return cls(which, case.length, case.contestant, case.bytes_moved(), *figures, len(ms), None, note=note)


def compared(rows: list[Row], copy_speed: float) -> list[Row]:
    """Each with its ratios to ``plain``, ``softmax`` and the floor of the same pass and length, and its exponents."""
    at = {(row.which, row.length, row.contestant): row for row in rows}
    return [_compared(row, at, copy_speed) for row in rows]


def _compared(row: Row, at: dict[tuple[str, int, str], Row], copy_speed: float) -> Row:
    plain, softmax, floor = (at.get((row.which, row.length, name)) for name in (PLAIN, SOFTMAX, FLOOR))
    own = [other for other in at.values() if (other.which, other.contestant) == (row.which, row.contestant)]
    speed = None if row.ms is None else row.bytes_moved / row.ms * 1e3
    return row._replace(
        plain_over_this=_ratio(plain and plain.ms, row.ms),
        softmax_over_this=_ratio(softmax and softmax.ms, row.ms),
        this_over_floor=_ratio(row.ms, floor and floor.ms),
        peak_over_plain=_ratio(row.peak_mb, plain and plain.peak_mb),
        peak_over_softmax=_ratio(row.peak_mb, softmax and softmax.peak_mb),
        gb_per_s=None if speed is None else speed / 1e9,
        share_of_copy=_ratio(speed, copy_speed),
        exponent=_exponent(own),
        exponent_far=_exponent([other for other in own if other.length >= FAR]),
    )


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _exponent(rows: list[Row]) -> float | None:
    points = [(row.length, row.ms) for row in rows if row.ms is not None]
    return exponent([length for length, _ in points], [ms for _, ms in points])


def print_tables(rows: list[Row]) -> None:
    """One table a pass, and the exponents of all."""
    for which in dict.fromkeys(row.which for row in rows):
        show(_table([row for row in rows if row.which == which]))
    grown = {(row.which, row.contestant): row for row in rows if row.exponent is not None}
    if grown:
        table = columns("time grows as N to the power", ["pass", "contestant"], ["all lengths", f"from {FAR} on"])
        for (which, name), row in grown.items():
            table.add_row(which, name, cell(row.exponent, 2), cell(row.exponent_far, 2))
        show(table)


def _table(rows: list[Row]) -> Table:
    most = max(row.samples for row in rows)
    numbers = ["ms", "plain / this", "softmax / this", "this / floor", "peak MB", "of plain's", "GB/s", "of copy's"]
    title = f"{rows[0].which}: medians of {most} samples taken in turns; peak: beside the inputs"
    table = columns(title, ["N", "contestant"], numbers)
    if any(row.note or row.samples < most for row in rows):
        table.add_column("")
    last = rows[0].length
    for row in rows:
        if row.length != last:
            table.add_section()
            last = row.length
        fewer = f"{row.samples} samples " if 0 < row.samples < most else ""
        figures = (
            *(cell(row.ms, 3), cell(row.plain_over_this, 2), cell(row.softmax_over_this, 2)),
            *(cell(row.this_over_floor, 2), cell(row.peak_mb, 1), cell(row.peak_over_plain, 2)),
            *(cell(row.gb_per_s, 2), cell(row.share_of_copy, 3)),
        )
        notes = [fewer + row.note] if table.columns[-1].header == "" else []
        table.add_row(str(row.length), row.contestant, *figures, *notes)
    return table
