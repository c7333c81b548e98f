"""Text from a run: the words, rewritten, and real processes that train a tiny model on a text and go on with it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nala_platform.errors import UserError
from nala_platform.prompting import rewritten

NALA = str(Path(sys.executable).with_name("nala"))


@pytest.fixture(scope="module")
def nala(zygote) -> Callable[..., tuple[str, str]]:
    """``nala(folder, *words, code=0)``: what the command prints, and what it says on stderr."""

    def call(folder: Path, *words: str, code: int = 0) -> tuple[str, str]:
        done = zygote.call(folder, *words, code=code, environment={"XDG_CACHE_HOME": str(folder / "cache")})
        if code == 2:
            assert done.stderr.count("\n") == 1 and done.stderr.startswith("nala: error: "), done.stderr
        return done.stdout, done.stderr

    return call


TINY = ["--config", "smoke", "--data.context", "32", "--model.new_tokens", "5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with a text."""
    folder = tmp_path_factory.mktemp("text")
    lines = [f"Line {index}: naïve words about {index % 7} trees.\n" for index in range(2000)]
    (folder / "my.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def run(nala, folder: Path) -> str:
    """A run on it; the text is away afterwards."""
    sizes = ["--data.vocab_size", "300", "--model.network.vocab_size", "300"]
    own = ["--data.root", "my.txt", "--folder", "runs/first"]
    out, _ = nala(folder, "fit", "--task", "lm", "--config", "text", *TINY, *sizes, *own)
    (folder / "my.txt").rename(folder / "away.txt")
    assert "run folder: runs/first" in out
    return "runs/first"


def test_a_run_on_a_text_is_whole(folder: Path, run: str):
    names = {path.name for path in (folder / run).iterdir()}
    assert {"config.yaml", "summary.json", "sample.txt", "tokenizer", "checkpoints", "metrics.csv"} <= names
    protocol = json.loads((folder / run / "summary.json").read_text())["protocol"]
    assert protocol["data"] == "text" and protocol["root"] == "my.txt"
    assert sum(protocol["bytes"].values()) == (folder / "away.txt").stat().st_size
    assert protocol["documents"]["train"] >= 1 and protocol["tokenizer"].startswith("byte-level BPE of 300 tokens")


PROMPT = "Line 3: naïve 日本 'words' #1\n{a: null}"


def test_generate_prints_the_text_and_nothing_else_and_predict_the_same(nala, folder: Path, run: str):
    first, told = nala(folder, "generate", run, f"--prompt={PROMPT}", "--new_tokens", "12", "--seed", "1")
    assert first.startswith(PROMPT) and len(first) > len(PROMPT) + 5
    path = re.fullmatch(r"predictions: (.*)\n", told)
    assert path is not None and (folder / path[1]).read_text() == first
    options = ["--model.new_tokens", "12", "--seed_everything", "1"]
    assert nala(folder, "predict", run, "--data.prompt", PROMPT, *options)[0] == first
    assert nala(folder, "generate", run, f"--prompt={PROMPT}", "--new_tokens", "12", "--seed", "2")[0] != first


def test_each_line_of_a_file_is_gone_on_with(nala, folder: Path, run: str):
    (folder / "prompts.txt").write_text("Line 1\n\n trees\n")
    out, _ = nala(folder, "generate", run, "--prompts", "prompts.txt", "--new_tokens", "3", "--temperature", "0")
    assert re.fullmatch(r"Line 1.*\n trees.*\n", out, re.DOTALL)


def test_lines_that_cannot_be_read_are_passed_by(nala, folder: Path, run: str):
    """They are named with their numbers, the others are gone on with, and the exit code says so."""
    (folder / "some.txt").write_bytes(b"\xef\xbb\xbfLine 1\n\ncaf\xe9\n nul\0\n trees\xe2\x80\xa8x\r\n")
    out, told = nala(
        folder, "generate", run, "--prompts", "some.txt", "--new_tokens", "3", "--temperature", "0", code=7
    )
    assert re.fullmatch(r"Line 1.*\n trees\u2028x.*\n", out, re.DOTALL) and "nul" not in out
    assert "some.txt: line 3: bytes that are not UTF-8" in told and "some.txt: line 4: a NUL" in told
    assert "nala: error: 2 inputs cannot be read and were skipped" in told
    (folder / "wide.txt").write_bytes("Line 1\n".encode("utf-16"))
    assert "the text is in UTF-16" in nala(folder, "generate", run, "--prompts", "wide.txt", code=2)[1]


def test_text_comes_while_it_is_written(folder: Path, run: str):
    words = [NALA, "generate", run, "--prompt", "Line 1", "--new_tokens", "3000", "--temperature", "5"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        seen = process.stdout.read(len("Line 1") + 20)
        try:
            assert seen.startswith("Line 1") and process.poll() is None
        finally:
            process.terminate()
            process.communicate(timeout=60)


def test_who_reads_a_part_of_it_or_letters_that_a_terminal_lacks_end_no_run_in_a_traceback(folder: Path, run: str):
    command = f"'{NALA}' generate {run} --prompt '日本' --new_tokens 2000 | head -c 4"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], cwd=folder, env=environment, capture_output=True, timeout=300
    )
    assert done.returncode == 141 and done.stderr == b""
    assert done.stdout.startswith(b"??") and len(done.stdout) == 4


def test_a_run_is_not_scored_without_its_text_or_with_other_tokens(nala, folder: Path, run: str):
    assert "my.txt does not exist" in nala(folder, "test", run, code=2)[1]
    (folder / "my.txt").write_text((folder / "away.txt").read_text().replace("words about", "sentences of"))
    assert "other tokens now than the run has learned" in nala(folder, "test", run, code=2)[1]


def test_the_model_must_know_the_tokens_of_a_tokenizer(nala, folder: Path, run: str):
    words = ["fit", "--task", "lm", "--config", "text", *TINY, "--data.root", "away.txt", "--data.tokenizer"]
    assert "add --model.network.vocab_size 257" in nala(folder, *words, "bytes", code=2)[1]
    out, _ = nala(folder, *words, f"{run}/tokenizer", "--model.network.vocab_size", "300")
    protocol = json.loads((folder / re.findall(r"run folder: (\S+)", out)[0] / "summary.json").read_text())["protocol"]
    assert protocol["tokenizer"] == f"{run}/tokenizer, 300 tokens"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Run folders without content: one with a tokenizer, one without."""
    for name in ("lm", "seg"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text("")
        (tmp_path / name / "checkpoints" / "best.ckpt").write_text("")
    (tmp_path / "lm" / "tokenizer").mkdir()
    return tmp_path


def test_other_commands_stay_as_they_are(runs: Path):
    for words in (
        ["fit", "--task", "lm", "--prompt", "x"],
        ["predict", str(runs / "seg"), "--data.predict_path", "x"],
        ["predict", str(runs / "lm"), "--data", "my.Data"],
        ["predict", "--task", "seg", "--ckpt_path", str(runs / "seg" / "checkpoints" / "best.ckpt")],
    ):
        assert rewritten(words) == words


def test_generate_is_predict_with_prompts(runs: Path):
    run = str(runs / "lm")
    words = rewritten(["generate", run, "--prompt", "a=b", "--seed", "3", "--top_k", "7"])
    assert words[:5] == ["predict", run, "--data", "nala_platform.data.language.prompts.PromptData",
                         f"--data.tokenizer={runs / 'lm' / 'tokenizer'}"]  # fmt: skip
    assert words[-3:] == ["--data.prompt=a=b", "--model.top_k=7", "--seed_everything=3"]
    checkpoint = f"{run}/checkpoints/best.ckpt"
    for named in (["--ckpt_path", checkpoint], [f"--ckpt_path={checkpoint}"]):
        words = rewritten(["predict", "--task", "lm", *named, "--prompt", "a"])
        assert words[1] == checkpoint and words[-4:] == ["--task", "lm", "--data.prompt", "a"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "seg", "--prompt", "x"], "seg has no folder tokenizer: it is no run of a language model"),
        (["generate", "none", "--prompt", "x"], "no run at none"),
        (["generate", "lm"], "give --prompt TEXT"),
        (["generate", "lm", "--prompt", "x", "--prompts", "y"], "give --prompt TEXT"),
        (["generate", "--prompt", "x"], "RUN"),
        (["generate", "lm", "--prompt", "x", "--new_tokens", "0"], "no whole number from 1 up"),
        (["generate", "lm", "--promt", "x"], "did you mean '--prompt'"),
        (["predict", "--task", "lm", "--prompt", "x"], "a prompt needs a run"),
        (["predict", "seg", "--prompt", "x"], "no run of a language model"),
    ],
)
def test_wrong_words_are_refused(runs: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str):
    monkeypatch.chdir(runs)
    with pytest.raises(UserError, match=message) as caught:
        rewritten(words)
    assert "\n" not in str(caught.value)
