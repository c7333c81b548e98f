"""Checkpoint files: whole or not there, and able to tell."""

import errno
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from nala_platform.errors import StorageError
from nala_platform.runs.checkpoint_file import CheckpointFile, DamagedError, check, read_note, save
from nala_platform.runs.files import give_name

TREE = {"state_dict": {"a": torch.arange(1000.0), "b": torch.zeros(3, dtype=torch.bfloat16)}, "epoch": 3, "list": [1.5]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(TREE, tmp_path / "a.ckpt", {"step": 7})
    return tmp_path / "a.ckpt"


def test_it_is_what_torch_and_zip_read(path: Path):
    """R13."""
    loaded = torch.load(path, weights_only=True)
    assert torch.equal(loaded["state_dict"]["a"], TREE["state_dict"]["a"]) and loaded["epoch"] == 3
    assert zipfile.ZipFile(path).testzip() is None
    assert read_note(path)["step"] == 7 and check(path)["step"] == 7


def test_every_flipped_bit_and_every_cut_is_found(path: Path):
    """R10: at each of a hundred places, spread over the whole file, its directory and its note."""
    whole = path.read_bytes()
    for place in np.linspace(0, len(whole) - 1, 100).astype(int):
        flipped = bytearray(whole)
        flipped[place] ^= 0x10
        path.write_bytes(flipped)
        with pytest.raises(DamagedError, match=r"a\.ckpt is damaged"):
            check(path)
        path.write_bytes(whole[:place])
        with pytest.raises(DamagedError):
            check(path)
    path.write_bytes(whole)
    check(path)


def test_a_damaged_file_is_not_loaded(path: Path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match="SHA-256"):
        CheckpointFile().load_checkpoint(path, weights_only=True)


def test_files_of_other_programs_are_taken_as_they_are(tmp_path: Path):
    torch.save(TREE, tmp_path / "plain.ckpt")
    assert check(tmp_path / "plain.ckpt") == {}
    torch.save({"a": Path("x")}, tmp_path / "code.ckpt")
    with pytest.raises(DamagedError, match="cannot be loaded as a checkpoint"):
        CheckpointFile().load_checkpoint(tmp_path / "code.ckpt", weights_only=True)


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_fails_at_any_point_leaves_the_old_file(call: str, number: int, path: Path, monkeypatch):
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    target = "nala_platform.runs.checkpoint_file._Hashing.write" if call == "write" else f"os.{call}"
    monkeypatch.setattr(target, fail)
    with pytest.raises(StorageError, match=rf"cannot write the checkpoint .*a\.ckpt: {os.strerror(number)}"):
        save({"other": torch.zeros(10)}, path, {"step": 8})
    monkeypatch.undo()
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_a_process_that_dies_at_any_call_leaves_a_whole_checkpoint(path: Path):
    """R10: the rotation last -> previous, new -> last, in a child that ends without a word at its n-th system call."""
    new, previous = path.with_name("new.ckpt"), path.with_name("previous.ckpt")
    calls = ("fsync", "replace", "link", "chmod", "open", "unlink")
    for last_call in range(60):
        if (child := os.fork()) == 0:
            _die_at(calls, last_call)
            save({**TREE, "epoch": 4}, new, {"step": 8})
            give_name(path, previous)
            give_name(new, path)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert check(path)["step"] in (7, 8)
        if previous.exists():
            check(previous)
        if code == 0:
            break
        save(TREE, path, {"step": 7})
    assert code == 0 and last_call > 10
    assert (check(path)["step"], check(previous)["step"]) == (8, 7)


def _die_at(calls: tuple[str, ...], last_call: int) -> None:
    counted = 0
    for name in calls:
        real = getattr(os, name)

        def dying(*arguments, real=real, **options):
            nonlocal counted
            counted += 1
            if counted > last_call:
                os._exit(9)
            return real(*arguments, **options)

        setattr(os, name, dying)


def test_a_name_is_given_without_hard_links_too(tmp_path: Path, monkeypatch):
    (tmp_path / "a").write_text("new")
    (tmp_path / "b").write_text("old")

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    give_name(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "new" and len(list(tmp_path.iterdir())) == 2
    monkeypatch.undo()
    give_name(tmp_path / "a", tmp_path / "b")
    give_name(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").samefile(tmp_path / "b") and len(list(tmp_path.iterdir())) == 2
