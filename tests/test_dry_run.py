"""Several command lines read in one process."""

import io
import json
import sys

import pytest
from nala_platform.sweeps import rehearsal
from nala_platform.sweeps.space import Space

from nala_platform import cli, dry_run
from nala_platform.errors import UserError


def answer(lines: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(lines)))
    monkeypatch.setattr(sys, "argv", sys.argv)
    dry_run.main()
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_first_that_is_refused_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert answer([["tasks"], ["--help"]], monkeypatch, capsys) == {"code": 0, "error": ""}
    found = answer([["tasks"], ["fot"], ["fit", "--task", "sge"]], monkeypatch, capsys)
    assert found["code"] == 2 and found["error"].startswith("nala: error: no command 'fot'; did you mean 'fit'?")


def test_a_bug_is_told_with_its_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def broken() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "main", broken)
    found = answer([["tasks"]], monkeypatch, capsys)
    assert found["code"] == 1 and found["error"].endswith("RuntimeError: a bug\n") and "Traceback" in found["error"]


def test_a_configuration_whose_reading_never_ends_is_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rehearsal, "LIMIT", 0.01)
    with pytest.raises(UserError, match=r"has not ended in 0 s: try nala fit --task cls .*--print_config") as raised:
        rehearsal.rehearse("cls", (), Space({"seed_everything": {"categorical": [1]}}))
    assert "\n" not in str(raised.value)
