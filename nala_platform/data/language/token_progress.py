"""How far the making of tokens has come, and whether the disk has room for the rest."""

import shutil
import sys
import time
from pathlib import Path

from nala_platform.errors import StorageError

PATIENCE = 5.0  # seconds before the first line
EVERY = (1.0, 30.0)  # seconds between lines: on a terminal, and in a file
SEEN = 4 << 20  # bytes of the text's files, from which on what they will become can be told


class Progress:
    """Tells on standard error how much is done, from a few seconds on; refuses what does not fit on the disk.

    Args:
        folder: where the tokens are written.
        total: bytes of the files that are read.
        before: bytes of them that were read by an earlier process.
    """

    def __init__(self, folder: Path, total: int, before: int) -> None:
        self.folder, self.total, self.before = folder, total, before
        self._begun = time.monotonic()
        self._next = self._begun + PATIENCE
        self._shown = False

    def step(self, read: int, written: int) -> None:
        """Say so if it is time.

        Args:
            read: bytes of the files so far.
            written: bytes of tokens so far.

        Raises:
            StorageError: the disk has no room for what the rest will need.
        """
        self._check_room(read, written)
        now = time.monotonic()
        if now < self._next:
            return
        terminal = sys.stderr.isatty()
        self._next, self._shown = now + EVERY[not terminal], True
        rate = max(1.0, (read - self.before) / (now - self._begun))
        minutes = (self.total - read) / rate / 60
        line = (
            f"nala: tokens: {read / max(1, self.total):.1%} of {_size(self.total)}, {_size(rate)}/s, "
            f"{minutes:.0f} minutes left"
        )
        print(f"\r{line}  " if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the terminal's line."""
        if self._shown and sys.stderr.isatty():
            print(file=sys.stderr)

    def _check_room(self, read: int, written: int) -> None:
        if read < min(SEEN, self.total):
            return
        needed = written * max(0, self.total - read) // max(1, read)
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise StorageError(
                f"the tokens of this text will need {_size(needed)} more in {self.folder.parent}, where {_size(free)} "
                "are free: make room there, or name another folder by --data.source.cache_dir"
            )


def _size(count: float) -> str:
    """

    Examples:
        >>> _size(2_500_000)
        '2.5 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
