"""The errors of the command line and their exit codes."""

import re
from pathlib import Path

import pytest

from nala_platform import cli
from nala_platform.errors import (
    DivergedError,
    ExhaustedError,
    ExitCode,
    GroupError,
    NalaError,
    PrunedError,
    StoppedError,
    StorageError,
    UserError,
)

ROOT = Path(__file__).parents[1]


def test_the_readme_lists_the_exit_codes_that_there_are():
    text = " ".join((ROOT / "README.md").read_text().split())
    listed = re.search(r"Exit codes: (.*?), 128 \+ n ended by signal n\.", text)
    assert listed is not None
    assert [int(number) for number in re.findall(r"(?:^|, )(\d+) ", listed[1])] == list(ExitCode)


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (UserError("a mistake"), 2, "nala: error: a mistake\n"),
        (DivergedError("nan"), 3, "nala: error: nan\n"),
        (StorageError("no room"), 4, "nala: error: no room\n"),
        (ExhaustedError("no memory"), 5, "nala: error: no memory\n"),
        (PrunedError("pruned"), 6, "nala: pruned\n"),
        (StoppedError("stopped", 15), 143, "nala: stopped\n"),
        (GroupError("process 1 was ended", 137), 137, "nala: error: process 1 was ended\n"),
        (GroupError("", 3), 3, ""),
        (KeyboardInterrupt(), 130, "nala: interrupted\n"),
    ],
)
def test_each_error_is_one_line_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, printed: str
):
    def fail(words: list[str]) -> None:
        raise error

    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(cli, "_dispatch", fail)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == code and capsys.readouterr().err == printed


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch):
    def fail(words: list[str]) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(cli, "_dispatch", fail)
    with pytest.raises(KeyError):
        cli.main()


def test_library_callers_may_catch_the_usual_exceptions():
    for kind, usual in (
        (UserError, ValueError),
        (DivergedError, ArithmeticError),
        (StorageError, OSError),
        (ExhaustedError, MemoryError),
    ):
        assert issubclass(kind, usual) and issubclass(kind, NalaError)
