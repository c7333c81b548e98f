"""A run folder has one owner at a time, for as long as that one lives."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nala_platform.errors import UserError
from nala_platform.runs import lock
from nala_platform.runs.folder import take_folder

HOLD = """
import os, sys, time
from pathlib import Path
from nala_platform.runs.lock import RunLock
with RunLock() as lock:
    lock.take(Path(sys.argv[1]))
    if len(sys.argv) > 2 and os.fork() == 0:  # as a loader's worker is
        time.sleep(60)
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(*words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as it:
        assert it.stdout.readline() == "held\n"
        yield it
        os.killpg(it.pid, signal.SIGKILL)


def test_who_holds_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lock, "PATIENCE", 0.3)
    with holder(str(tmp_path)) as other:
        with lock.RunLock() as mine, pytest.raises(UserError, match=f"is being trained by process {other.pid} on "):
            mine.take(tmp_path)
        assert (tmp_path / lock.LOCK).exists()  # who was refused has removed nothing


def test_a_killed_owner_lets_go_though_its_workers_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lock, "PATIENCE", 0.3)
    with holder(str(tmp_path), "fork") as other:
        other.kill()
        other.wait()
        with lock.RunLock() as mine:
            mine.take(tmp_path)
        assert not list(tmp_path.iterdir())


def test_who_waits_gets_it(tmp_path: Path):
    with holder(str(tmp_path)) as other, lock.RunLock() as mine:
        other.stdin.close()
        mine.take(tmp_path)
        assert (tmp_path / lock.LOCK).read_text().startswith(f"process {os.getpid()} on ")
        assert take_folder(tmp_path) == tmp_path  # a lock alone is no content
