"""Tokens on disk: killed and gone on with, bad rows, room on the disk, bounded memory, and the order of a run."""

import json
import os
import signal
import subprocess
import sys
from collections import namedtuple
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nala_platform.data.language import token_progress, token_store
from nala_platform.data.language.text import TextData, TextSource
from nala_platform.data.language.token_writer import JOURNAL, note
from nala_platform.data.problems import BadFileError, collecting
from nala_platform.errors import StorageError, UserError


def lines(count: int, texts: list[str] | None = None) -> str:
    made = texts or [f"Document {index} of some.\n" + "words and words " * (index % 40) for index in range(count)]
    return "".join(json.dumps({"text": text}) + "\n" for text in made)


def folder(root: Path, count: int = 900, files: int = 3) -> Path:
    root.mkdir()
    for index in range(files):
        (root / f"train-{index}.jsonl").write_text(lines(count))
    (root / "val.jsonl").write_text(lines(50))
    return root


def data(root: Path, cache: str = "cache", **options) -> TextData:
    own = {name: options.pop(name) for name in ("bad_rows", "seed", "stride") if name in options}
    source = TextSource(cache_dir=str(root.parent / cache), **own)
    return TextData(str(root), tokenizer="bytes", source=source, **{"context": 64, "batch_size": 4} | options)


def content(cache: Path) -> dict[str, bytes]:
    (made,) = cache.glob("tokens-*")
    return {path.name: path.read_bytes() for path in made.iterdir() if path.suffix in (".tokens", ".bytes")}


def killed(root: Path, batches: int) -> int:
    """The signal that ended a process which makes the tokens, in the given batch."""
    child = os.fork()
    if child:
        return os.WTERMSIG(os.waitpid(child, 0)[1])
    try:  # the child, which shall never come back into pytest
        token_store.BATCH, token_store.EVERY = 16, 4
        left = iter(range(batches - 1))
        token_store.Progress.step = lambda *_: next(left, None) is None and os.kill(os.getpid(), signal.SIGKILL)
        data(root, bad_rows=9).items("train")
    finally:
        os._exit(1)


def test_what_was_killed_is_gone_on_with_and_is_the_same_to_the_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    root = folder(tmp_path / "a")
    for path in root.glob("train*"):
        path.write_text('{"text": null}\n' + path.read_text() + "{\n")
    data(root, "whole", bad_rows=9).items("train")
    capsys.readouterr()
    for batches in (70, 80):  # in the second file and, going on, in the third
        assert killed(root, batches) == signal.SIGKILL
        assert not [*(tmp_path / "cache").glob("tokens-*")]
    (unfinished,) = (tmp_path / "cache").glob(".tokens-*.unfinished")
    # what was written behind the last note is not counted twice
    assert (unfinished / "train.tokens").stat().st_size > 0 and (unfinished / JOURNAL).is_file()
    place = json.loads((unfinished / JOURNAL).read_text())["place"]
    assert place[0] == 2 and place[1] > 0
    module = data(root, bad_rows=9)
    assert module.store.bad.count == 6 and "going on with the tokens" in capsys.readouterr().err
    assert content(tmp_path / "cache") == content(tmp_path / "whole")
    assert module.store.facts == data(root, "whole", bad_rows=9).store.facts
    assert not [*(tmp_path / "cache").glob(".tokens-*.unfinished")]


def test_a_journal_that_does_not_fit_its_files_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = folder(tmp_path / "a", count=100)
    data(root, "whole").items("train")

    def no_room(*facts: Any) -> None:
        note(*facts)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(token_store, "BATCH", 16)
    monkeypatch.setattr(token_store, "EVERY", 4)
    monkeypatch.setattr(token_store, "note", no_room)
    with pytest.raises(UserError, match="No space left on device; make room there"):
        data(root).items("train")
    monkeypatch.undo()
    (unfinished,) = (tmp_path / "cache").glob(".tokens-*.unfinished")
    (unfinished / "train.tokens").write_bytes(b"x")
    data(root).items("train")
    assert content(tmp_path / "cache") == content(tmp_path / "whole")


def test_too_little_room_is_told_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(token_progress.shutil, "disk_usage", lambda _: usage(10**9, 0, 200_000))
    monkeypatch.setattr(token_progress, "SEEN", 1000)
    monkeypatch.setattr(token_store, "BATCH", 16)
    with pytest.raises(StorageError, match=r"will need .* kB more in .*cache, where 200 kB are free: make room"):
        data(folder(tmp_path / "a")).items("train")
    assert not [*(tmp_path / "cache").glob("tokens-*")]


def test_progress_is_told_when_it_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    root = folder(tmp_path / "a", count=100)
    data(root, "quick").items("train")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(token_progress, "PATIENCE", 0.0)
    monkeypatch.setattr(token_progress, "EVERY", (0.0, 0.0))
    data(root).items("train")
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("nala: tokens: 100.0% of ") and last.endswith(" 0 minutes left")


BAD = ['{"text": "good"}', "{", '{"text": null}', '{"body": "a"}', '{"text": ""}', '{"text": "good too"}']


def test_bad_rows_are_named_counted_and_limited(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root = tmp_path / "a"
    root.mkdir()
    (root / "train.jsonl").write_text("\n".join(BAD))
    (root / "val.jsonl").write_bytes(b'{"text": "v"}\n{"text": "\xe9"}\n')
    with pytest.raises(BadFileError, match=r"train.jsonl: line 2: no valid JSON.*or let up to N such rows be"):
        data(root).items("train")
    with pytest.raises(BadFileError, match=r"val.jsonl: line 2: bytes that are not UTF-8.*: this is one more than 3"):
        data(root, bad_rows=3).items("train")
    module = data(root, bad_rows=4)
    module.items("train")
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 4 and all(line.startswith("nala: note: left out: ") for line in err)
    assert "line 2: no valid JSON" in err[0] and "text is null" in err[1] and "no 'text' (there: body)" in err[2]
    facts = module.store.facts["train"]
    assert facts["documents"] == 2 and facts["empty"] == 1 and facts["bytes"] == len("goodgood too")
    assert module.protocol()["bad rows left out"] == 4
    # what is in the cache is not let through under a lower limit
    with pytest.raises(BadFileError, match=r"val.jsonl: line 2"):
        data(root, bad_rows=3).items("train")
    with collecting() as found:
        data(root).items("train")
    assert [problem.path.name for problem in found] == ["train.jsonl"] * 3 + ["val.jsonl"]


def seen(module: TextData, epochs: int, order_from: tuple[int, int] = (0, 0), **share: int) -> list[list[int]]:
    """The blocks of each batch, from (epoch, samples consumed) on."""
    if share:
        module.trainer = SimpleNamespace(global_rank=share["rank"], world_size=share["world_size"])
    module.resume(*order_from)
    loader, found = module.train_dataloader(), []
    for epoch in range(order_from[0], epochs):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            found.append([int(name.removeprefix("block")) for name in batch["name"]])
    return found


def test_a_run_goes_on_with_the_very_blocks_it_would_have_seen(tmp_path: Path):
    """R1 to R4: stopped anywhere in an epoch; and the next epoch is whole."""
    root = folder(tmp_path / "a", count=60, files=2)
    whole = seen(data(root, seed=3), epochs=2)
    blocks = len(data(root).items("train"))
    each = -(-blocks // 4)
    assert sorted(chain(*whole[:each])) == sorted(chain(*whole[each:])) == list(range(blocks))
    for batch in (1, each // 5, round(0.9 * each)):
        assert seen(data(root, seed=3), epochs=2, order_from=(0, 4 * batch)) == whole[batch:]
    assert seen(data(root, seed=3), epochs=2, order_from=(1, 8)) == whole[each + 2 :]
    assert seen(data(root, seed=4), epochs=1) != whole[:each]


def test_processes_share_the_order_of_one(tmp_path: Path):
    """R5: the global batches are those of one process with as many blocks."""
    root = folder(tmp_path / "a", count=60, files=2)
    one = seen(data(root, batch_size=8, seed=3), epochs=1)
    two = [seen(data(root, batch_size=4, seed=3), epochs=1, rank=rank, world_size=2) for rank in range(2)]
    whole = len(data(root).items("train")) // 8
    assert [first + second for first, second in zip(*two, strict=True)][:whole] == one[:whole]
    # a run of two goes on as one
    assert seen(data(root, batch_size=8, seed=3), epochs=1, order_from=(0, 24)) == one[3:]


MEMORY = """
import resource, sys
from nala_platform.data.language.text import TextSource, TextData
from nala_platform.data.order import Draw
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
module = TextData(sys.argv[1], tokenizer="bytes", context=1024, source=TextSource(cache_dir=sys.argv[2]))
warm = TextData(sys.argv[3], tokenizer="bytes", context=1024, source=TextSource(cache_dir=sys.argv[2]))
warm.items("train")[Draw(0, 0)]
before = peak()
blocks = module.items("train")
made = peak() - before
total = sum(int(blocks[Draw(index, 0)]["target"].sum()) > 0 for index in range(len(blocks)))
print(made, total, len(blocks))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path: Path):
    root = tmp_path / "a"
    root.mkdir()
    line = "Of trees, and of words about trees, naïve ones too. " * 19 + "\n"
    for index in range(6):
        (root / f"train-{index}.txt").write_text(line * 10_000)
    (root / "val.txt").write_text(line)
    size = sum(path.stat().st_size for path in root.iterdir())
    assert size > 60_000_000
    small = tmp_path / "small"
    small.mkdir()
    (small / "train.txt").write_text(line * 1000)
    (small / "val.txt").write_text(line)
    words = [sys.executable, "-c", MEMORY, str(root), str(tmp_path / "cache"), str(small)]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"TOKENIZERS_PARALLELISM": "false"})
    assert done.returncode == 0, done.stderr
    made, total, blocks = map(int, done.stdout.split())
    assert total == blocks and blocks > 58_000
    assert made < 80, f"making tokens of 60 MB of text took {made} MB of memory"
