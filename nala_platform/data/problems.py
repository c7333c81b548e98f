"""What is wrong with data on disk: an error at once or, for ``nala check-data``, a list of all there is."""

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple, TypeVar

from nala_platform.data.names import composed
from nala_platform.errors import UserError
from nala_platform.paths import StrPath

Found = TypeVar("Found")


class Problem(NamedTuple):
    """One thing that is wrong with one file or folder.

    Attributes:
        kind: a word or two that `nala check-data` counts by: "unpaired", "empty", "wrong label", …
        path: the file or folder.
        text: one line that says what is wrong and how to mend it; it need not repeat the path.
    """

    kind: str
    path: Path
    text: str

    def __str__(self) -> str:
        return f"{printable(str(self.path))}: {self.text}"


_ESCAPED = ("Cc", "Cs", "Zl", "Zp")  # control characters, bytes that are no text, ends of lines and paragraphs


def _is_no_text(letter: str) -> bool:
    return unicodedata.category(letter) == "Cs"


def printable(text: str) -> str:
    """The text in one line that any terminal takes: line breaks, and bytes of a file name that are no text, escaped.

    Examples:
        >>> printable("a\\nb.png")
        'a\\\\nb.png'
    """
    return "".join(
        letter.encode("unicode_escape").decode("ascii") if unicodedata.category(letter) in _ESCAPED else letter
        for letter in text
    )


class BadFileError(UserError):
    """A sample that cannot be used because of one of its files.

    Attributes:
        problem: which and why; the message is ``path: text``.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem

    def __reduce__(self) -> tuple[type["BadFileError"], tuple[Problem]]:
        return BadFileError, (self.problem,)  # it crosses from a loader's process to the main one


_collected: ContextVar[list[Problem] | None] = ContextVar("collected", default=None)


@contextmanager
def gathering(place: ContextVar[list[Found] | None]) -> Iterator[list[Found]]:
    """Within it, ``place`` holds the list that is given here, for others to add to."""
    found: list[Found] = []
    token = place.set(found)
    try:
        yield found
    finally:
        place.reset(token)


def collecting() -> AbstractContextManager[list[Problem]]:
    """Within it, `report` adds to the list that is given here instead of raising."""
    return gathering(_collected)


def report(problems: Sequence[Problem]) -> None:
    """Say what a listing of files has found; the caller goes on with the files that are left.

    Raises:
        UserError: there are some, and nobody collects them; the first five are named.
    """
    collected = _collected.get()
    if collected is not None:
        collected.extend(problems)
    elif len(problems) == 1:
        raise UserError(str(problems[0]))
    elif problems:
        few = "; ".join(str(problem) for problem in problems[:5])
        raise UserError(
            f"{len(problems)} files are not fit to be used: {few}{' …' if len(problems) > 5 else ''} "
            "(nala check-data lists all; --data.exclude FILE leaves out the paths that stand in a file)"
        )


class Excluded:
    """The files that the user leaves out: a path a line, absolute or below ``root``; blank lines and # are passed over.

    A line that is no file's very name means the file of that name in other Unicode letters (see `names`).

    Args:
        exclude: the list, as ``nala check-data --fix-list`` writes it; ``None`` leaves nothing out.
        root: of the data.

    Raises:
        UserError: the list does not exist or is no text.
    """

    def __init__(self, exclude: StrPath | None, root: Path) -> None:
        self.paths: frozenset[Path] = frozenset()
        self._others: frozenset[str] = frozenset()  # which are no file's very name
        if exclude is None:
            return
        path = Path(exclude).expanduser()
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise UserError(f"data.exclude: {path} does not exist: nala check-data --fix-list writes one") from error
        except OSError as error:
            raise UserError(f"data.exclude: {path} cannot be read as UTF-8 text ({error})") from error
        # a name may hold bytes that are no text, as `nala check-data --fix-list` writes it
        lines = [line.strip() for line in data.decode("utf-8-sig", "surrogateescape").split("\n")]
        named = [Path(line).expanduser() for line in lines if line and not line.startswith("#")]
        self.paths = frozenset((root / path).absolute() for path in named)
        others = {excluded for excluded in self.paths if not excluded.exists()}
        if foreign := [excluded for excluded in sorted(others) if any(map(_is_no_text, str(excluded)))]:
            name = printable(str(foreign[0]))
            raise UserError(f"data.exclude: {path} cannot be read as UTF-8 text: no file is called {name}")
        self._others = frozenset(composed(str(excluded)) for excluded in others)

    def __contains__(self, path: Path) -> bool:
        whole = path.absolute()
        return whole in self.paths or (bool(self._others) and composed(str(whole)) in self._others)
