"""Times of several things on one machine, taken in turns, so that what else it does slows all of them alike."""

import time
from collections.abc import Callable

SAMPLE = 0.01
"""Seconds: what is shorter is run several times a sample, or the clock and the interpreter would be most of it."""


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
"""``cpu``: the processor time of this process, which other programs do not lengthen; only for work on a CPU."""


def take_turns(
    works: dict[str, Callable[[], object]],
    *,
    repeats: int,
    limit: float,
    wait: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of a run, ``repeats`` samples each, and why those failed that did.

    In each round all have their turn, another one first each time. The first round, in which things are compiled and
    memory is first touched, is not counted. Who has spent ``limit`` seconds has no further turn, but has had one.
    ``wait`` returns when the device has done its work.
    """
    failed: dict[str, str] = {}
    for name, work in works.items():
        try:
            work()
            wait()
        except Exception as error:  # a bench of ten contestants does not end because one of them cannot run here
            failed[name] = said(error)
    names = [name for name in works if name not in failed]
    samples: dict[str, list[float]] = {name: [] for name in names}
    spent = dict.fromkeys(names, 0.0)
    for turn in range(repeats):
        first = turn % max(1, len(names))
        for name in [*names[first:], *names[:first]]:
            if spent[name] < limit:
                calls = max(1, int(SAMPLE / samples[name][-1])) if samples[name] else 1
                seconds = _seconds(works[name], calls, wait, clock)
                samples[name].append(seconds / calls)
                spent[name] += seconds
    return samples, failed


def said(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def _seconds(work: Callable[[], object], calls: int, wait: Callable[[], None], clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        work()
    wait()
    return clock() - start
