"""``nala check-data``: what is there, and what is wrong with it."""

import argparse
import os
import sys
import time

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.data import Dataset

from nala_platform.arguments import Arguments, path
from nala_platform.check.documents import Documents
from nala_platform.check.findings import Findings
from nala_platform.check.module import build
from nala_platform.check.picture import Sampler, draw
from nala_platform.check.show import show, write, write_fix_list
from nala_platform.check.walk import walk
from nala_platform.data.base import DataModule
from nala_platform.data.language.tokens import Blocks
from nala_platform.data.loader import Sample
from nala_platform.data.order import Draw
from nala_platform.data.problems import BadFileError, Problem, collecting
from nala_platform.errors import ExitCode, UserError

SPLITS = ("train", "val", "test")


def main(words: list[str]) -> None:
    """Look at all samples and say what is there; exit code 1 if something has to be mended.

    Raises:
        UserError: the data cannot be named at all, or a file cannot be written.
    """
    options, typed = _arguments().split(words)
    _check_names(options)
    with collecting() as listed:
        findings, sampler = Findings(_built(typed, listed)), Sampler()
        start = time.monotonic()
        if findings.data is not None:
            _look(findings, findings.data, sampler, options.workers)
        seconds = time.monotonic() - start
        findings.note("", listed)
    show(findings)
    total = sum(split.samples for split in findings.splits.values())
    rate = f"{total / max(seconds, 1e-3):.0f} a second"
    print(f"{total} samples in {seconds:.1f} s: {rate} ({options.workers} processes)")
    _write(findings, sampler, options)
    count = len(findings.problems)
    print(f"{count} {'file is' if count == 1 else 'files are'} not fit to be used" if count else "nothing is wrong")
    if count:
        sys.exit(ExitCode.FAILURE)


def _arguments() -> Arguments:
    parser = Arguments(
        "nala check-data",
        "Read every sample of every split that nala fit would, with the same --task, --config and --data.… keys.",
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser.add_argument("--workers", type=_count, default=cores, help=f"processes that read ({cores})")
    parser.add_argument("--output", type=path, help="FILE.csv: all problems; FILE.json: everything that was found")
    parser.add_argument("--fix-list", type=path, help="a list of the bad files, for --data.exclude")
    parser.add_argument("--picture", type=path, help="FILE.png: some training samples with their labels")
    return parser


def _check_names(options: argparse.Namespace) -> None:
    """Refuse what could not be written after a long look."""
    for flag, place, ends in (
        ("--output", options.output, (".csv", ".json")),
        ("--picture", options.picture, (".png", ".pdf", ".svg")),
        ("--fix-list", options.fix_list, ("",)),
    ):
        if place is None:
            continue
        if not place.name.lower().endswith(ends):
            raise UserError(f"{flag} {place}: its name must end with {' or '.join(ends)}")
        if place.is_dir() or not place.absolute().parent.is_dir():
            raise UserError(f"{flag} {place}: {'that is a folder' if place.is_dir() else 'there is no such folder'}")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 up")
    return int(text)


def _built(typed: list[str], listed: list[Problem]) -> DataModule | None:
    try:
        return build(typed)
    except BadFileError as error:
        listed.append(error.problem)
        return None


def _look(findings: Findings, data: DataModule, sampler: Sampler, workers: int) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console, documents = Console(stderr=True), Documents()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        for split in SPLITS:
            try:
                items = data.whole(split)
            except BadFileError as error:
                findings.note(split, [error.problem])
                continue
            if split == "test" and _is_validation(data, items):
                findings.alike["test"] = "val"
                continue
            task = progress.add_task(split, total=_length(items))
            for index, facts in enumerate(walk(items, workers)):
                sampler.add(split, index, findings.add(split, facts))
                progress.advance(task)
            if isinstance(items, Blocks):
                findings.shared += documents.add(split, items.stream, getattr(data, "tokenizer").eos_token_id)  # noqa: B009


def _is_validation(data: DataModule, items: Dataset[Sample]) -> bool:
    """Whether the test split is the validation split once more, by a few of its samples."""
    others, count = data.whole("val"), _length(items)
    return count == _length(others) and all(
        _equal(items, others, Draw(index, epoch=0)) for index in {0, count // 2, count - 1} if count
    )


def _equal(items: Dataset[Sample], others: Dataset[Sample], draw: Draw) -> bool:
    one, other = _read(items, draw), _read(others, draw)
    if isinstance(one, Problem) or isinstance(other, Problem):
        return one == other
    return one.keys() == other.keys() and all(
        torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key]
        for key, value in one.items()
    )


def _read(items: Dataset[Sample], draw: Draw) -> Sample | Problem:
    try:
        return items[draw]
    except BadFileError as error:
        return error.problem


def _length(items: Dataset[Sample]) -> int:
    return len(items)  # type: ignore[arg-type]


def _write(findings: Findings, sampler: Sampler, options: argparse.Namespace) -> None:
    if options.output is not None:
        write(findings, options.output)
    if options.fix_list is not None:
        write_fix_list(findings, options.fix_list)
    if options.picture is not None and findings.data is not None:
        draw(findings.data, sampler, options.picture)
