"""One HTML page that needs nothing beside it: no script, no style and no picture from elsewhere."""

import base64
from collections.abc import Iterable
from html import escape
from pathlib import Path

from .tables import Table

_LONG = 40  # letters in a cell above which it is broken into lines
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1240px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
p, figcaption { color: #555; max-width: 62rem; } .lead { font-size: 1.05rem; color: #222; }
figure { margin: 0; } figure img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .5rem; border-bottom: 1px solid #e4e4e4; vertical-align: top; }
th { border-bottom: 2px solid #bbb; white-space: nowrap; } td.number { text-align: right; white-space: nowrap; }
th.number { text-align: right; }
td.text { white-space: nowrap; } td.long { min-width: 14rem; overflow-wrap: anywhere; }
tr.marked { background: #fdeef4; }
pre { background: #f5f5f5; padding: .7rem .9rem; overflow-x: auto; font-size: 13px; }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """The whole page.

    Args:
        title: plain text, also the first heading.
        parts: HTML, in their order.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A heading and what stands below it.

    Examples:
        >>> section("Best < all", text("a & b"))
        '<section>\\n<h2>Best &lt; all</h2>\\n<p>a &amp; b</p>\\n</section>'
    """
    return "\n".join(["<section>", f"<h2>{escape(title)}</h2>", *parts, "</section>"])


def text(words: str, style: str = "") -> str:
    """A paragraph."""
    return f'<p class="{style}">{escape(words)}</p>' if style else f"<p>{escape(words)}</p>"


def command(words: str) -> str:
    """What is to be typed."""
    return f"<pre>{escape(words)}</pre>"


def table(content: Table) -> str:
    """A table; numbers stand to the right, and it scrolls by itself where it is wider than the page."""
    kinds = ["number" if _is_numeric(column) else "text" for column in zip(*content.rows, strict=True)]
    lines = ['<div class="wide"><table>']
    if any(content.header):
        lines.append(_row("th", content.header, kinds or ["text"] * len(content.header)))
    for place, row in enumerate(content.rows):
        lines.append(_row("td", row, kinds, "marked" if place in content.marked else ""))
    return "\n".join([*lines, "</table></div>"])


def picture(path: Path, caption: str) -> str:
    """A PNG file, inside the page."""
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<figure><img alt="{escape(path.stem)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _row(tag: str, cells: list[str], kinds: list[str], style: str = "") -> str:
    styles = ["long" if kind == "text" and len(cell) > _LONG else kind for cell, kind in zip(cells, kinds, strict=True)]
    inside = "".join(f'<{tag} class="{one}">{escape(cell)}</{tag}>' for cell, one in zip(cells, styles, strict=True))
    return f'<tr class="{style}">{inside}</tr>' if style else f"<tr>{inside}</tr>"


def _is_numeric(column: Iterable[str]) -> bool:
    cells = [cell for cell in column if cell]
    if any(", " in cell for cell in cells):  # a list
        return False
    return bool(cells) and all(cell[0].isdigit() or (cell[0] in "-+N" and cell[1:2].isalnum()) for cell in cells)
