"""Odd surroundings: a locale that is not UTF-8, and standard streams that are closed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NALA = str(Path(sys.executable).with_name("nala"))
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def started(command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["bash", "-c", command], capture_output=True, env={**os.environ, **environment}, timeout=60)


@pytest.fixture(scope="session")
def latin_1(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A locale of one byte a character, made for the test."""
    folder = tmp_path_factory.mktemp("locales")
    words = ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(folder / "de_DE.ISO-8859-1")]
    if shutil.which("localedef") is None or subprocess.run(words, capture_output=True).returncode != 0:
        pytest.skip("no locale of ISO-8859-1 can be made here")
    return {"LOCPATH": str(folder), "LC_ALL": "de_DE.ISO-8859-1", "PYTHONUTF8": "0"}


def check_light_commands(environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    done = started(f"{NALA} tasks && {NALA} --help", environment)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr
    assert b"BlueMarbleData" in done.stdout and b"nala sweep STUDY" in done.stdout
    name = folder / "größe.yaml"
    name.write_text("a: ü\na: 1\n", encoding="utf-8")
    done = started(f"{NALA} fit --task cls --config '{name}'", environment)
    assert done.returncode == 2 and b"a stands twice (lines 1 and 2)" in done.stderr, done.stderr
    return done


def test_in_an_ascii_locale_files_and_their_names_are_utf_8(tmp_path: Path):
    done = check_light_commands(ASCII, tmp_path)
    assert rb"gr\xf6\xdfe.yaml" in done.stderr  # a terminal without these letters


def test_in_a_latin_1_locale_files_are_utf_8_and_the_terminal_is_not(tmp_path: Path, latin_1: dict[str, str]):
    assert "größe.yaml".encode("latin-1") in check_light_commands(latin_1, tmp_path).stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_no_mistake(closed: str):
    assert started(f"{NALA} tasks {closed}", {}).returncode == 0
    assert started(f"{NALA} sweep no_such_study {closed}", {}).returncode == 2


def test_what_is_opened_later_does_not_take_the_place_of_a_closed_stream(tmp_path: Path):
    code = (
        "from nala_platform import streams; streams.prepare(); import os; file = open('kept', 'w'); "
        "os.write(1, b'lost'); os.write(2, b'lost'); file.write('kept'); assert file.fileno() > 2"
    )
    done = started(f'cd {tmp_path} && {sys.executable} -c "{code}" >&- 2>&- <&-', {})
    assert done.returncode == 0 and (tmp_path / "kept").read_text() == "kept"


def test_a_child_does_not_learn_of_the_terminal(tmp_path: Path):
    """It would print in another encoding into files that are read as UTF-8."""
    code = (
        "from nala_platform import streams; streams.prepare(); import os, sys; "
        "assert sys.flags.utf8_mode and not [name for name in os.environ if name.startswith('NALA_TERM')]"
    )
    done = started(f'{sys.executable} -c "{code}"', ASCII)
    assert done.returncode == 0, done.stderr
