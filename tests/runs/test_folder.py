"""Run folders and whole files."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nala_platform import runs
from nala_platform.errors import UserError


def test_many_runs_in_one_second_get_a_folder_each(tmp_path: Path):
    """C3: a second run never meets the first one's files."""
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: runs.new_folder(tmp_path / "seg", "same"), range(24)))
    assert len(set(folders)) == 24
    assert all(folder.is_dir() for folder in folders)


def test_a_place_that_cannot_hold_runs_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--runs_dir"):
        runs.new_folder(tmp_path / "file", "x")


def test_an_interrupted_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "summary.json"
    runs.write_atomic(path, "old")

    def fail(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nala_platform.runs.files.os.replace", fail)
    with pytest.raises(OSError, match="No space"):
        runs.write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_holds_no_nan(tmp_path: Path):
    runs.write_json(tmp_path / "a.json", {"a": [1.5, float("nan"), {"b": float("inf")}], "path": tmp_path})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1.5, None, {"b": None}], "path": str(tmp_path)}


def test_what_is_missing_in_a_run_is_said(tmp_path: Path):
    with pytest.raises(UserError, match=r"has no config\.yaml"):
        runs.find_run(str(tmp_path))
    (tmp_path / "config.yaml").write_text("task: seg\n")
    with pytest.raises(UserError, match="no checkpoint yet"):
        runs.find_run(str(tmp_path))
