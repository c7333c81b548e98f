"""The errors of the command line and their exit codes."""

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
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
    from_os_error,
)

ROOT = Path(__file__).parents[1]


def test_the_guide_lists_the_exit_codes_that_there_are():
    text = (ROOT / "docs" / "guides" / "resume.md").read_text(encoding="utf-8")
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)] == list(ExitCode)
    assert "| 128 + n | ended by signal n |" in text


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


def test_a_variable_shows_where_an_error_of_one_line_came_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(words: list[str]) -> None:
        try:
            int("x")
        except ValueError as error:
            raise UserError("a mistake") from error

    monkeypatch.setattr(cli, "_dispatch", fail)
    monkeypatch.setenv("NALA_TRACEBACK", "1")
    with pytest.raises(SystemExit):
        cli.main()
    said = capsys.readouterr().err
    assert "invalid literal for int()" in said and said.endswith("\nnala: error: a mistake\n")


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


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can reach, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_another_user(action: Callable[[], object]) -> str:
    """What `from_os_error` makes of the error of ``action``: its type and text. Root may read and write everything, so
    the action runs in a process of another user.
    """
    answer, question = os.pipe()
    if (child := os.fork()) == 0:
        said = "nothing failed"
        try:
            if os.getuid() == 0:
                os.setresuid(65534, 65534, 65534)
            action()
        except OSError as error:
            ours = from_os_error(error)
            said = f"{type(ours).__name__}: {ours}"
        finally:
            os.write(question, said.encode())
            os._exit(0)
    os.waitpid(child, 0)
    os.close(question)
    with os.fdopen(answer) as file:
        return file.read()


def test_a_file_that_cannot_be_read_is_a_mistake_and_not_a_full_disk(place: Path):
    file = place / "words.txt"
    file.write_text("a")
    file.chmod(0)
    said = as_another_user(file.read_text)
    assert said.startswith(f"UserError: cannot read {file}: Permission denied: see that it is whole")


def test_a_folder_that_cannot_be_read_or_entered_is_a_mistake(place: Path):
    folder = place / "data"
    folder.mkdir()
    (folder / "words.txt").write_text("a")
    folder.chmod(0)
    assert as_another_user(lambda: os.scandir(folder)).startswith(f"UserError: cannot read {folder}: ")
    assert as_another_user((folder / "words.txt").read_text).startswith(f"UserError: cannot read {folder}/words.txt: ")
    folder.chmod(stat.S_IRWXU)


def test_what_cannot_be_written_is_a_storage_error(place: Path):
    file = place / "words.txt"
    file.write_text("a")
    file.chmod(0o444)
    for action in (
        lambda: file.write_text("b"),
        lambda: (place / "new.txt").write_text("b"),
        lambda: (place / "folder").mkdir(),
        lambda: file.rename(place / "other.txt"),
    ):
        said = as_another_user(action)
        assert said.startswith(f"StorageError: cannot write {place}/"), said
        assert said.endswith("Permission denied: see that this user may write there")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageError),
        (errno.EDQUOT, StorageError),
        (errno.EFBIG, StorageError),
        (errno.EROFS, StorageError),
        (errno.EIO, UserError),
        (errno.EISDIR, UserError),
        (errno.ENAMETOOLONG, UserError),
        (errno.EMFILE, UserError),
        (errno.ENOENT, type(None)),
        (errno.ECONNREFUSED, type(None)),
    ],
)
def test_errors_of_the_system_by_number(number: int, kind: type, tmp_path: Path):
    (tmp_path / "a").write_text("a")
    ours = from_os_error(OSError(number, os.strerror(number), str(tmp_path / "a")))
    assert type(ours) is kind
    if isinstance(ours, StorageError):
        assert str(ours).startswith(f"cannot write {tmp_path / 'a'}: {os.strerror(number)}: ")


def test_an_error_of_the_system_is_one_line_of_any_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    def fail(words: list[str]) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    monkeypatch.setattr(cli, "_dispatch", fail)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2 and capsys.readouterr().err.startswith(f"nala: error: cannot read {tmp_path}: ")
