"""The findings for a person, and for other programs."""

import csv
import io
import json
import sys
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from nala_platform.check.findings import Findings
from nala_platform.check.split import Split
from nala_platform.data.problems import Problem, printable
from nala_platform.runs import write_atomic

FEW = 3  # problems of a kind on the screen
CLASSES = 20  # lines of the table of classes


def show(findings: Findings) -> None:
    """Print the splits, the classes, the warnings and the first few problems of each kind."""
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    if findings.splits:
        console.print(_splits(findings))
    for name, counts in findings.counted().items():
        if name != "images":
            console.print(f"{name}: {', '.join(f'{split} {count}' for split, count in counts.items())}", markup=False)
    for name, other in findings.alike.items():
        console.print(f"{name} is {other} once more")
    if any(split.images for split in findings.splits.values()):
        console.print(_classes(findings))
    for line in findings.warnings():
        console.print(f"warning: {line}", soft_wrap=True, markup=False)
    kinds: dict[str, list[Problem]] = defaultdict(list)
    for problem in findings.problems:
        kinds[problem.kind].append(problem)
    for kind, count in findings.counts().items():
        console.print(f"{kind}: {count}", markup=False)
        for problem in kinds[kind][:FEW]:
            console.print(f"  {problem}", soft_wrap=True, markup=False)
        if count > FEW:
            console.print(f"  … and {count - FEW} more")


def write(findings: Findings, path: Path) -> None:
    """All problems as CSV, or everything as JSON, as the suffix says."""
    if path.suffix == ".json":
        text = json.dumps(findings.stated(), indent=2, ensure_ascii=False) + "\n"
        # bytes of a file's name that are no text become JSON's own escapes
        write_atomic(path, text.encode("utf-8", "backslashreplace"))
        return
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["kind", "split", "path", "text"])
    rows.writerows([problem.kind, split, problem.path, problem.text] for problem, split in findings.problems.items())
    write_atomic(path, text.getvalue().encode("utf-8", "surrogateescape"))


def write_fix_list(findings: Findings, path: Path) -> None:
    """The files to be left out, for ``--data.exclude``."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for problem in findings.problems:
        reasons[str(problem.path.absolute())].append(f"# {problem.kind}: {problem.text}")
    lines = ["# written by nala check-data --fix-list: --data.exclude leaves these files out"]
    for name in sorted(reasons):
        # a list of lines cannot name it
        is_broken = "\n" in name or "\r" in name
        lines += [*reasons[name][:FEW], f"# rename it to leave it out: {printable(name)}" if is_broken else name]
    write_atomic(path, ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))


def _splits(findings: Findings) -> Table:
    table = Table(title=f"{type(findings.data).__name__}: what is there", title_justify="left")
    rows = [_row(split) for split in findings.splits.values()]
    table.add_column("split")
    shown = [column for column in rows[0] if any(row[column] for row in rows)]
    for column in shown:
        table.add_column(column, justify="right")
    for name, row in zip(findings.splits, rows, strict=True):
        table.add_row(name, *(row[column] for column in shown))
    return table


def _row(split: Split) -> dict[str, str]:
    extent = split.extent(None) or {}
    sizes = {key: "x".join(map(str, extent.get(key, ()))) for key in ("min", "median", "max")}
    return {
        "samples": str(split.samples),
        "bad": str(split.bad),
        "tokens": str(split.tokens or ""),
        "labels": "" if split.labels is None else f"{split.labels[0]}..{split.labels[1]}",
        "height x width: min": sizes["min"],
        "median": sizes["median"],
        "max": sizes["max"],
        "sizes": str(extent.get("distinct", "")),
    }


def _classes(findings: Findings) -> Table:
    stated = findings.stated()["splits"]
    kinds = [
        kind for kind in ("images of each class", "pixels of each class") if any(kind in s for s in stated.values())
    ]
    table = Table(title="classes", title_justify="left")
    table.add_column("")
    for name in stated:
        for kind in kinds:
            table.add_column(f"{name}: {kind.split()[0]}", justify="right")
    labels = list(dict.fromkeys(label for s in stated.values() for kind in kinds for label in s.get(kind, {})))
    for label in labels[:CLASSES]:
        table.add_row(label, *(str(s.get(kind, {}).get(label, 0)) for s in stated.values() for kind in kinds))
    if len(labels) > CLASSES:
        table.add_row(f"… and {len(labels) - CLASSES} more (--output FILE.json)")
    return table
