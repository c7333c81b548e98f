"""Whether a run goes on with the data that it began with."""

import sys
from typing import Any


def tell_change(trainer: Any, before: dict[str, Any], now: dict[str, Any], what: str) -> None:
    """Say so, once, where training goes on with other data.

    Args:
        trainer: of the data module, or None.
        before: the data module's state in the checkpoint.
        now: its own.
        what: has changed, if they differ.
    """
    if trainer and trainer.state.fn == "fit" and trainer.is_global_zero and before != now:
        print(
            f"nala: note: {what} has changed since the checkpoint was written: training "
            "goes on with the new one, which is no exact resume",
            file=sys.stderr,
        )
