"""``nala bench``: what things cost, measured side by side in one process. A module a bench; light until one is run."""

import importlib

from nala_platform.errors import UserError, near
from nala_platform.notices import quiet

# Each is the function `main` of a module, given the words behind its name.
BENCHES = {
    "attention": "nala_platform.bench.attention",
    "model": "nala_platform.bench.model",
    "step": "nala_platform.bench.step",
    "memory": "nala_platform.bench.memory",
    "guarantees": "nala_platform.bench.guarantees",
}


def main(words: list[str]) -> None:
    """Run the bench that the first word names.

    Raises:
        UserError: no such bench, or what it says.
    """
    known = ", ".join(BENCHES)
    if not words or words[0] in ("--help", "-h"):
        print(f"nala bench NAME [...]: {known} (nala bench NAME --help says more)")
    elif words[0] not in BENCHES:
        raise UserError(f"no bench {words[0]!r}{near(words[0], BENCHES)} Benches: {known}")
    else:
        bench = importlib.import_module(BENCHES[words[0]])
        quiet()  # once more: Lightning has set the level of its loggers
        bench.main(words[1:])
