"""Signals that ask a run to stop."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Remembers SIGINT and SIGTERM, so that the run can stop between two steps, where its state is whole.

    The first one is noted, and who trains looks at ``received``. A second one does what it would have done at the
    first: a person who presses Ctrl-C twice wants out now; the last checkpoint stands.

    Attributes:
        received: number of the signal, or 0.
    """

    def __init__(self) -> None:
        self.received = 0
        self._before = {number: signal.getsignal(number) for number in SIGNALS}

    def install(self) -> None:
        """Take the signals; called again when a fit begins, since Lightning puts its own handlers in place then."""
        for number in SIGNALS:
            signal.signal(number, self._receive)

    def restore(self) -> None:
        """Put back what was there."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def listening(self) -> Iterator["StopSignals"]:
        """Take the signals inside the block."""
        self.install()
        try:
            yield self
        finally:
            self.restore()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
            signal.raise_signal(number)
            return
        self.received = number
        name = signal.Signals(number).name
        print(f"nala: {name}: saving, then leaving (once more: leave at once)", file=sys.stderr, flush=True)
