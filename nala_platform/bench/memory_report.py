"""The rows of ``nala bench memory``: compared, as a table, a CSV file and a picture."""

from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nala_platform.bench.attention_plot import GREY, against_tokens
from nala_platform.bench.contestants import MATERIALISED, SOFTMAX
from nala_platform.bench.output import columns, show
from nala_platform.runs import save_figure

MEASURED, EXTRAPOLATED, SKIPPED = "measured", "extrapolated", "skipped"
PUBLISHED, PUBLISHED_TOKENS = 92.3, 70_000
"""Per cent by which the paper's NaLa needs less memory than softmax in super-resolution, and at how many tokens."""


class Row(NamedTuple):
    """A line of the CSV file."""

    which: str
    """training step, or inference"""
    tokens: int
    contestant: str
    peak_mb: float | None
    status: str
    less_than_materialised: float | None = None
    """per cent; the published figure is of this kind"""
    less_than_fused: float | None = None
    note: str = ""


def compared(rows: list[Row]) -> list[Row]:
    """Each but softmax itself with the per cent that it needs less than its two forms at the same size."""
    at = {(row.which, row.tokens, row.contestant): row.peak_mb for row in rows}
    return [
        row
        if row.contestant in (SOFTMAX, MATERIALISED)
        else row._replace(
            less_than_materialised=_less(row.peak_mb, at.get((row.which, row.tokens, MATERIALISED))),
            less_than_fused=_less(row.peak_mb, at.get((row.which, row.tokens, SOFTMAX))),
        )
        for row in rows
    ]


def _less(mine: float | None, theirs: float | None) -> float | None:
    return None if mine is None or not theirs else 100 * (1 - mine / theirs)


def print_table(rows: list[Row]) -> None:
    """All rows, then ours beside the published figure."""
    titles = ("peak MB", "less than materialised", "less than fused")
    table = columns("peak memory; ~ is extrapolated, not measured", ("", "tokens", "attention"), titles)
    table.add_column("")
    ordered = sorted(rows, key=lambda row: (row.which != rows[0].which, row.tokens))
    for before, row in zip([None, *ordered], ordered, strict=False):
        if before and (before.which, before.tokens) != (row.which, row.tokens):
            table.add_section()
        peak = "" if row.peak_mb is None else f"{'~' if row.status == EXTRAPOLATED else ''}{row.peak_mb:.1f}"
        less = [_per_cent(row.less_than_materialised), _per_cent(row.less_than_fused)]
        note = "" if row.status == MEASURED else f"{row.status} {row.note}"
        table.add_row(row.which, str(row.tokens), row.contestant, peak, *less, note)
    show(table)
    for line in beside_published(rows):
        print(line)


def _per_cent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"


def beside_published(rows: list[Row]) -> list[str]:
    """A sentence a pass and NaLa backend: what it saves at the size nearest to the published one."""
    lines = []
    for which, name in dict.fromkeys((row.which, row.contestant) for row in rows if row.contestant.startswith("nala")):
        own = [row for row in rows if (row.which, row.contestant) == (which, name) and row.less_than_materialised]
        if not own:
            continue
        row = min(own, key=lambda row: abs(row.tokens - PUBLISHED_TOKENS))
        other = next(other for other in rows if other[:3] == (which, row.tokens, MATERIALISED))
        how = row.status if row.status == other.status else f"{row.status}, the other {other.status}"
        lines.append(
            f"{which} at {row.tokens} tokens: {name} needs {row.less_than_materialised:.1f} % less than softmax with "
            f"its scores in memory ({how}); published: {PUBLISHED} % at {PUBLISHED_TOKENS // 1000}k tokens"
        )
    return lines


def draw(rows: list[Row], picture: Path, title: str) -> None:
    """A panel a pass; what is extrapolated is hollow, at the end of a dotted line."""
    passes = list(dict.fromkeys(row.which for row in rows))
    figure = Figure(figsize=(1 + 6 * len(passes), 4.8), layout="constrained")
    for axes, which in zip(figure.subplots(1, len(passes), squeeze=False)[0], passes, strict=True):
        own = [row for row in rows if row.which == which and row.peak_mb is not None]
        for place, name in enumerate(dict.fromkeys(row.contestant for row in own)):
            _curve(axes, [row for row in own if row.contestant == name], f"C{place}")
        against_tokens(axes, [row.tokens for row in own], f"{which}: peak memory", "MB")
    figure.suptitle(f"{title}\nfilled: measured; hollow: extrapolated", fontsize=9, color=GREY)
    save_figure(figure, picture)


def _curve(axes: Axes, rows: list[Row], color: str) -> None:
    measured = [row for row in rows if row.status == MEASURED]
    computed = [row for row in rows if row.status == EXTRAPOLATED]
    x, y = [row.tokens for row in measured], [row.peak_mb or 0.0 for row in measured]
    axes.plot(x, y, color=color, marker="o", label=rows[0].contestant)
    if computed:
        x, y = [*x[-1:], *(row.tokens for row in computed)], [*y[-1:], *(row.peak_mb or 0.0 for row in computed)]
        axes.plot(x, y, color=color, linestyle=":")
        axes.plot(x[-len(computed) :], y[-len(computed) :], color=color, marker="o", fillstyle="none", linestyle="")
