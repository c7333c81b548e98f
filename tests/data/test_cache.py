"""Folders that are whole or not there, with real processes that want them at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nala_platform.data import cache as token_cache
from nala_platform.data.cache import MANIFEST, default_folder, digest, kept, key
from nala_platform.errors import UserError


def make(folder: Path) -> dict:
    (folder / "a").write_bytes(bytes(range(200)))
    (folder / "b").write_text("text")
    return {"rows": 3}


def never(folder: Path) -> dict:
    raise AssertionError("made again")


def test_it_is_made_once_and_read_afterwards(tmp_path: Path):
    folder = tmp_path / "deep" / "entry"
    assert kept(folder, make) == {"rows": 3}
    assert kept(folder, never) == {"rows": 3}
    assert sorted(path.name for path in folder.parent.iterdir()) == [".entry.lock", "entry"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: (folder / "a").write_bytes(b"short"), "a has 5 bytes instead of 200"),
        (lambda folder: (folder / "a").write_bytes(bytes(200)), "the content of a has changed"),
        (lambda folder: (folder / "a").unlink(), "a is missing"),
        (lambda folder: (folder / MANIFEST).unlink(), "manifest.json is missing"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "manifest.json is not what it should be"),
    ],
)
def test_a_damaged_one_is_made_again_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil, reason: str):
    folder = tmp_path / "entry"
    kept(folder, make)
    spoil(folder)
    assert kept(folder, make) == {"rows": 3}
    assert f"is damaged ({reason}): it is made again" in capsys.readouterr().err
    assert (folder / "a").read_bytes() == bytes(range(200))
    assert kept(folder, never) == {"rows": 3}


def test_a_mistake_on_the_way_leaves_nothing(tmp_path: Path):
    def fail(folder: Path) -> dict:
        (folder / "a").write_text("half")
        raise UserError("line 3")

    with pytest.raises(UserError, match="line 3"):
        kept(tmp_path / "entry", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".entry.lock"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot keep .*entry: .*--data.source.cache_dir"):
        kept(tmp_path / "file" / "entry", make)


def test_an_input_that_cannot_be_read_is_not_blamed_on_the_folder(tmp_path: Path):
    def fail(folder: Path) -> dict:
        raise PermissionError(13, "Permission denied", "/data/words.txt")

    with pytest.raises(PermissionError, match=r"/data/words\.txt"):
        kept(tmp_path / "cache" / "entry", fail)


def test_a_user_without_a_home_is_told_which_variables_to_set(monkeypatch: pytest.MonkeyPatch):
    def fail(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", fail)
    with pytest.raises(UserError, match="no home folder; set XDG_CACHE_HOME, HOME or "):
        default_folder()


SLOW = """
import sys, time, pathlib
from nala_platform.data.cache import kept
def make(folder):
    with (pathlib.Path(sys.argv[1]) / "made").open("a") as file: file.write("x")
    (folder / "a").write_text("half"); print("begun", flush=True); time.sleep(float(sys.argv[2]))
    (folder / "a").write_text("a" * 1000)
    return {"rows": 3}
folder = pathlib.Path(sys.argv[1]) / "entry"
print(kept(folder, make), len((folder / "a").read_text()))
"""


def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SLOW, str(folder), str(seconds)], stdout=subprocess.PIPE, text=True)


def test_of_processes_that_want_it_at_once_one_makes_it_and_all_see_it_whole(tmp_path: Path):
    processes = [start(tmp_path, 1.0) for _ in range(3)]
    printed = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    assert [lines[-1] for lines in printed] == ["{'rows': 3} 1000"] * 3
    assert (tmp_path / "made").read_text() == "x"


def test_without_locks_all_make_it_and_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As on a network drive: what another process has put there meanwhile is kept."""
    folder = tmp_path / "entry"
    monkeypatch.setitem(sys.modules, "fcntl", None)

    def overtaken(temporary: Path) -> dict:
        kept(folder, make)
        (temporary / "a").write_text("mine")
        return {"rows": 9}

    assert kept(folder, overtaken) == {"rows": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_one_that_was_killed_leaves_no_lock_and_its_rest_is_swept(tmp_path: Path):
    process = start(tmp_path, 60.0)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert len([path for path in tmp_path.glob(".entry.*") if path.is_dir()]) == 1
    assert kept(tmp_path / "entry", make) == {"rows": 3}  # a lock that were left would be waited for without end
    assert not [path for path in tmp_path.glob(".entry.*") if path.is_dir()]


def test_a_large_file_s_digest_reads_blocks_of_it(tmp_path: Path):
    path = tmp_path / "a"
    path.write_bytes(bytes(10_000))
    sampled = digest(path, whole=100, block=10)
    assert sampled != digest(path) == digest(path, whole=10_000, block=10)
    for place in (0, 9_999, 9_990 * 31 // 63):
        content = bytearray(10_000)
        content[place] = 1
        path.write_bytes(content)
        assert digest(path, whole=100, block=10) != sampled
    path.write_bytes(bytes(10_001))
    assert digest(path, whole=100, block=10) != sampled


def test_the_name_follows_the_facts_and_the_format(monkeypatch: pytest.MonkeyPatch):
    name = key(a=[1, "x"], b=None)
    assert name == key(b=None, a=[1, "x"]) != key(a=[1, "y"], b=None)
    monkeypatch.setattr(token_cache, "FORMAT", 99)
    assert key(a=[1, "x"], b=None) != name


def test_the_place_is_the_user_s_cache(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_folder() == Path("/somewhere/nala")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/me")
    assert default_folder() == Path("/me/.cache/nala")
