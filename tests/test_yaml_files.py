"""YAML as users write it: keys that stand twice are named, and scalars mean what they mean to jsonargparse."""

from pathlib import Path

import pytest
from jsonargparse import get_loader
from nala_platform.sweeps.study_file import read_settings

from nala_platform import argv, yaml_files
from nala_platform.errors import UserError

SCALARS = [
    *("1e-3", "1E4", "+1e3", "1_0.5", ".5", "-.5", ".5e+3", "1.", "0x1f", "017", "1:30", "1:30.5", ".inf", "-.INF"),
    *("2024-01-01", "yes", "on", "null", "~", "true", "'1e-3'", "1e", "e1", "0b11", "1_000", "-1", "None", "# x"),
]


@pytest.mark.parametrize("text", SCALARS)
def test_a_scalar_means_what_jsonargparse_takes_it_for(text: str):
    ours, theirs = yaml_files.load(text), get_loader("yaml")(text)
    assert (ours, type(ours)) == (theirs, type(theirs))


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("trainer:\n  max_epochs: 1\nmodel: x\ntrainer:\n  max_steps: 2\n", 4, "trainer stands twice (lines 1 and 4)"),
        ("a:\n  b:\n    - {c: 1}\n    - c: 1\n      d: 2\n      c: 3\n", 6, "c stands twice (lines 4 and 6)"),
        ("a: 1\nb: 2\n'a': 3\na: 4\n", 3, "a stands 3 times (lines 1, 3 and 4)"),
        ("a: 1\na: 2\nb: {c: 1, c: 2}\n", 2, "a stands twice (lines 1 and 2); c stands twice (lines 3 and 3)"),
    ],
)
def test_a_key_that_stands_twice_is_named_with_its_lines(tmp_path: Path, text: str, line: int, said: str):
    mine = tmp_path / "mine.yaml"
    mine.write_text(text)
    for read in (lambda: argv.conf_file(str(mine)), lambda: read_settings(text, str(mine))):
        with pytest.raises(UserError) as caught:
            read()
        assert str(caught.value) == f"{mine}, line {line}: not valid YAML: {said}: keep one of them"


def test_a_key_that_a_merge_brings_may_be_given_anew():
    assert yaml_files.load("x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\n")["y"] == {"a": 1, "b": 3}


@pytest.mark.parametrize("content", [b"\xff\xfe\x00binary", b"\x89PNG\r\n\x1a\n\x00"])
def test_a_config_that_is_no_text_is_one_line(tmp_path: Path, content: bytes):
    mine = tmp_path / "mine.yaml"
    mine.write_bytes(content)
    with pytest.raises(UserError, match=r"mine\.yaml is damaged: it is no text of YAML in UTF-8$"):
        argv.conf_file(str(mine))


def test_a_folder_as_config_is_one_line(tmp_path: Path):
    with pytest.raises(UserError, match="is no file: give a YAML file"):
        argv.conf_file(str(tmp_path))


def test_a_config_without_read_permission_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mine = tmp_path / "mine.yaml"
    mine.write_text("task: cls\n")

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)  # the tests may run as root, who may read everything
    with pytest.raises(UserError, match=rf"^cannot read {mine}: Permission denied$"):
        argv.conf_file(str(mine))


@pytest.mark.parametrize("name", ["x" * 300, "missing/config.yaml", "a\0b"])
def test_a_config_that_cannot_be_there_is_one_line(name: str):
    with pytest.raises(UserError):
        argv.conf_file(name)


def test_a_config_with_a_byte_order_mark_is_read(tmp_path: Path):
    mine = tmp_path / "mine.yaml"
    mine.write_bytes(b"\xef\xbb\xbftask: cls\n")
    assert yaml_files.read_keys(mine) == {"task": "cls"}
