"""A key takes what is typed as its type says: a text as it is, a path absolute and without ``~``."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest
from jsonargparse import Namespace

from nala_platform import yaml_files
from nala_platform.errors import UserError
from nala_platform.parser import Parser
from nala_platform.paths import PathOrName, StrPath

TEXTS = [
    *("Question: where?", "[1, 2]", "# x", "---", "1e3", "1e-3", "true", "~", "None", "{a: b}", "", "@x", "- a", "-1"),
    *(
        "'q'",
        '"q"',
        "a\nb",
        "é ü",
        " sp ",
        "a=b",
        "2024-01-01",
        "nala_platform.data.digits.DigitsData",
        "!tag x",
        "a: b: c",
    ),
]


@dataclasses.dataclass
class Group:
    column: str = "text"
    cache: StrPath | None = None


class Thing:
    def __init__(
        self,
        text: str = "",
        maybe: str | None = None,
        root: StrPath = "data",
        place: Path = Path("place"),
        tokenizer: Literal["bpe", "bytes"] | str | PathOrName = "bpe",
        sets: StrPath | dict[str, StrPath] | None = None,
        number: int = 1,
        several: list[int] | None = None,
        group: Group = Group(),  # noqa: B008
        child: "Thing | None" = None,
    ) -> None:
        self.given = dict(locals())


def parsed(*words: str) -> Namespace:
    """What the words mean; and the same again once it is written to a file and read."""
    parser = Parser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--name", type=str, default="")
    parser.add_argument("--maybe", type=str | None, default=None)
    parser.add_argument("--folder", type=StrPath | None, default=None)
    parser.add_subclass_arguments(Thing, "data", required=False)
    found = parser.parse_args(list(words))
    written = parser.dump(found, skip_unset=False)
    again = parser.parse_object(yaml_files.load(written))
    assert parser.dump(again, skip_unset=False) == written
    return found


def thing(*words: str) -> dict[str, Any]:
    return parsed(f"--data={__name__}.Thing", *words).data.init_args.as_dict()


@pytest.mark.parametrize("text", [*TEXTS, "null"])
def test_a_text_is_taken_as_typed(text: str):
    assert parsed(f"--name={text}").name == text
    assert thing(f"--data.text={text}")["text"] == text
    assert thing(f"--data.group.column={text}")["group"]["column"] == text
    child = thing(f"--data.child={__name__}.Thing", f"--data.child.text={text}")["child"]
    assert child["init_args"]["text"] == text


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_may_be_left_out_is_taken_as_typed(text: str):
    assert parsed(f"--maybe={text}").maybe == text
    assert thing(f"--data.maybe={text}")["maybe"] == text


def test_null_leaves_out_what_may_be_left_out():
    assert parsed("--maybe=x", "--maybe=null").maybe is None
    assert thing("--data.maybe=x", "--data.maybe=null")["maybe"] is None


@pytest.mark.parametrize("text", [*TEXTS, "null"])
def test_in_a_file_the_quotes_of_yaml_decide(tmp_path: Path, text: str):
    written = yaml_files.dump({"maybe": text, "data": {"class_path": f"{__name__}.Thing", "init_args": {"text": text}}})
    (tmp_path / "mine.yaml").write_text(written, encoding="utf-8")
    found = parsed(f"--config={tmp_path / 'mine.yaml'}")
    assert found.data.init_args.text == text
    assert found.maybe == text  # quoted: a text, also null


@pytest.mark.parametrize(
    ("words", "key", "expected"),
    [
        (["--data.number=3"], "number", 3),
        (["--data.several=[1, 2]"], "several", [1, 2]),
        (['--data.init_args={"text": "[1]", "number": 2}'], "text", "[1]"),
        (["--data.init_args.text=[1]"], "text", "[1]"),
    ],
)
def test_what_is_no_text_is_read_as_yaml(words: list[str], key: str, expected: object):
    assert thing(*words)[key] == expected


def test_paths_are_absolute_and_know_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "here" / "tok").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    home, here = str(tmp_path / "home"), str(tmp_path / "here")
    assert parsed("--folder=~/x").folder == f"{home}/x" and parsed("--folder", "~").folder == home
    assert thing("--data.root=~/x")["root"] == f"{home}/x"
    assert thing("--data.root=../y")["root"] == f"{tmp_path}/y"
    assert thing("--data.root=null")["root"] == f"{here}/null"
    assert thing("--data.place=z")["place"] == Path(here, "z")
    assert thing("--data.group.cache=~/c")["group"]["cache"] == f"{home}/c"
    assert thing("--data.sets=s")["sets"] == f"{here}/s"
    assert thing("--data.sets.A=~/a", "--data.sets.B=b")["sets"] == {"A": f"{home}/a", "B": f"{here}/b"}
    assert thing("--data.sets={A: ~/a}")["sets"] == {"A": f"{home}/a"}
    for given, expected in {"bpe": "bpe", "org/gpt2": "org/gpt2", "tok": f"{here}/tok", "~/t": f"{home}/t"}.items():
        assert thing(f"--data.tokenizer={given}")["tokenizer"] == expected


def test_a_path_in_a_file_begins_where_the_command_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "conf").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "mine.yaml").write_text(f"data: {{class_path: {__name__}.Thing, init_args: {{root: d}}}}")
    assert parsed("--config=conf/mine.yaml").data.init_args.root == f"{tmp_path}/d"


def test_a_link_before_two_dots_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    monkeypatch.chdir(tmp_path)
    assert Path(thing("--data.root=link/../x")["root"]).resolve() == tmp_path / "far" / "x"


def test_a_place_that_lightning_takes_as_text_or_path_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    parser = Parser(exit_on_error=False)
    parser.add_argument("--save_dir", type=StrPath, default=".")
    assert parser.parse_args(["--save_dir=logs"]).save_dir == f"{tmp_path}/logs"
    assert parser.parse_args(["--save_dir=s3://bucket/logs"]).save_dir == "s3://bucket/logs"


def test_an_empty_path_is_refused():
    with pytest.raises(UserError, match="it is empty"):
        parsed("--folder=")
