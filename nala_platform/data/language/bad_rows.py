"""What becomes of rows that are no text: they are named, counted and left out up to a limit, then all stops."""

import sys
from collections.abc import Callable

from nala_platform.data.problems import BadFileError, Problem, report
from nala_platform.errors import UserError

NAMED = 5  # on the terminal
KEPT = 1000  # in the cache


class BadRows:
    """The rows of a text that were left out.

    Args:
        limit: how many may be.

    Attributes:
        count: how many there are.
        problems: the first of them.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.count, self.problems = limit, 0, list[Problem]()

    def add(self, problem: Problem) -> None:
        """Count one more.

        Raises:
            BadFileError: it is one too many. While problems are collected (see `report`), it is one of them instead.
        """
        self.count += 1
        if len(self.problems) < KEPT:
            self.problems.append(problem)
        if self.count > self.limit:
            self._refuse(problem)

    def check(self, tell: Callable[[str], object] = lambda line: print(line, file=sys.stderr)) -> None:
        """Refuse what was read under another limit; name what was left out.

        Raises:
            BadFileError: see `add`.
        """
        if self.count > self.limit:
            for problem in self.problems[self.limit :]:
                self._refuse(problem)
        for problem in self.problems[:NAMED]:
            tell(f"nala: note: left out: {problem}")
        if self.count > NAMED:
            tell(f"nala: note: left out: {self.count} rows in all, of {self.limit} that data.source.bad_rows allows")

    def _refuse(self, problem: Problem) -> None:
        hint = "or let up to N such rows be left out by --data.source.bad_rows N"
        if self.limit:
            hint = f"or raise --data.source.bad_rows: this is one more than {self.limit}"
        problem = problem._replace(text=f"{problem.text}; {hint}")
        try:
            report([problem])
        except UserError:
            raise BadFileError(problem) from None
