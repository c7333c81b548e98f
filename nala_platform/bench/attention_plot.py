"""The picture of ``nala bench attention``: time and memory against the number of tokens, both axes logarithmic."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nala_platform.bench.attention_report import Row
from nala_platform.bench.contestants import FLOOR
from nala_platform.runs import save_figure

GREY = "0.45"
_MARKERS = "osD^vP*Xh"


def draw(rows: list[Row], picture: Path, title: str) -> None:
    """A column a pass; time above, and memory below if it was measured."""
    passes = list(dict.fromkeys(row.which for row in rows))
    has_memory = any(row.peak_mb for row in rows)
    figure = Figure(figsize=(1 + 6 * len(passes), 4.6 * (1 + has_memory)), layout="constrained")
    grid = figure.subplots(1 + has_memory, len(passes), squeeze=False)
    for column, which in enumerate(passes):
        own = [row for row in rows if row.which == which]
        _panel(grid[0, column], own, "ms", f"{which}: time", "milliseconds")
        if has_memory:
            _panel(grid[1, column], own, "peak_mb", f"{which}: peak memory beside the inputs", "MB")
    figure.suptitle(title, fontsize=9, color=GREY)
    save_figure(figure, picture)


def _panel(axes: Axes, rows: list[Row], figure: str, title: str, unit: str) -> None:
    for place, name in enumerate(dict.fromkeys(row.contestant for row in rows)):
        points = [(row, getattr(row, figure)) for row in rows if row.contestant == name and getattr(row, figure)]
        if not points:
            continue
        slope = points[0][0].exponent if figure == "ms" else None
        label = name if slope is None else f"{name}  (N to the {slope:.2f})"
        color, line = (GREY, "--") if name == FLOOR else (f"C{place % 7}", "-")
        marker = _MARKERS[place % len(_MARKERS)]
        lengths, values = [row.length for row, _ in points], [value for _, value in points]
        axes.plot(lengths, values, color=color, linestyle=line, label=label, marker=marker, markersize=4, linewidth=1.4)
    against_tokens(axes, [row.length for row in rows], title, unit)


def against_tokens(axes: Axes, lengths: list[int], title: str, unit: str) -> None:
    """Logarithmic axes, ticks at the lengths, titles, a legend for what is drawn."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted(set(lengths))
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.minorticks_off()
    axes.set_xlabel("tokens N")
    axes.set_ylabel(unit)
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)
