"""Text of one's own: parts, tokenizers, streams on disk, and the mistakes."""

import gzip
import json
import pickle
import shutil
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import zstandard
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from nala_platform.data.language.corpus import Corpus
from nala_platform.data.language.layouts.text import text_files
from nala_platform.data.language.prompts import PromptData
from nala_platform.data.language.text import TextData, TextSource
from nala_platform.data.language.tokenizer import load_tokenizer
from nala_platform.data.language.tokens import Stream
from nala_platform.data.order import Draw
from nala_platform.data.problems import Excluded
from nala_platform.errors import UserError

TEXTS = {
    "train": ["Of trees.\n" * 700, "naïve 日本 🙂\r\n", "one two three"],
    "val": ["two trees", "x" * 5000],
    "test": ["three"],
}


def tree(root: Path, kind: str = ".jsonl", texts: dict[str, list[str]] = TEXTS) -> Path:
    for part, documents in texts.items():
        path = root / f"{part}{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = "".join(json.dumps({"text": text}) + "\n" for text in documents).encode()
        if kind == ".txt":
            for index, text in enumerate(documents):
                (root / f"{part}-{index}.txt").write_bytes(text.encode())
        elif kind == ".parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.table({"text": documents}), path)
        else:
            pack = {".jsonl": bytes, ".jsonl.gz": gzip.compress, ".jsonl.zst": zstandard.compress}[kind]
            path.write_bytes(pack(rows))
    return root


OWN = ("text_column", "stride", "bad_rows", "hold_out", "seed")


def data(root: Path, **options) -> TextData:
    own = {name: options.pop(name) for name in OWN if name in options}
    source = TextSource(cache_dir=str(root.parent / "cache"), **own)
    return TextData(str(root), source=source, **{"vocab_size": 270, "context": 16} | options)


def found_files(root: Path) -> Corpus:
    return Corpus(root, text_files(root, Excluded(None, root)))


def tokens(module: TextData, part: str) -> list[int]:
    return module.store.stream(part).token_S.tolist()


@pytest.mark.parametrize("kind", [".txt", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_every_format_gives_the_same_tokens(tmp_path: Path, kind: str):
    plain, other = data(tree(tmp_path / "plain")), data(tree(tmp_path / "other", kind))
    for part in TEXTS:
        assert tokens(plain, part) == tokens(other, part)
    assert plain.tokenizer.decode(tokens(plain, "val")) == "<|endoftext|>".join(["", *TEXTS["val"], ""])


def test_a_stream_on_disk_is_the_stream_in_memory(tmp_path: Path):
    module = data(tree(tmp_path / "a"))
    short = TEXTS["train"][1:]  # a longer one is encoded in pieces
    memory, disk = Stream(short, module.tokenizer), module.store.stream("train")
    assert disk.token_S.dtype == np.uint16
    assert disk.token_S[-len(memory.token_S) :].tolist() == memory.token_S.tolist()
    assert disk.bytes_S[-len(memory.bytes_S) :].tolist() == memory.bytes_S.tolist()
    assert disk.bytes_S.sum() == sum(len(text.encode()) for text in TEXTS["train"])
    assert disk.occurrences(270).tolist() == np.bincount(disk.token_S[1:], minlength=270).tolist()
    copy = pickle.loads(pickle.dumps(disk))
    assert isinstance(copy.token_S, np.memmap) and copy.token_S.tolist() == disk.token_S.tolist()


@pytest.mark.parametrize("stride", [None, 5])
def test_every_token_is_covered_once(tmp_path: Path, stride: int | None):
    module = data(tree(tmp_path / "a"), stride=stride, batch_size=3)
    for part in ("train", "val", "test"):
        blocks, found = module.items(part), []
        for index in range(len(blocks)):
            sample = blocks[Draw(index, epoch=0)]
            kept = sample["target"] != -100
            found += sample["target"][kept].tolist()
            if part == "train":
                assert torch.equal(sample["tokens"][1:][kept[1:]], sample["target"][:-1][kept[1:]])
        assert found == tokens(module, part)[1:]
    shape = next(iter(module.train_dataloader()))["tokens"].shape
    assert shape == (3, 16)


def test_a_hash_splits_one_file_and_nothing_is_lost(tmp_path: Path):
    lines = [f"{index} of many lines, more or less\n" for index in range(20_000)]
    root = tmp_path / "mine.txt"
    root.write_text("".join(lines))
    pieces = [*found_files(root).pieces()]
    assert "".join(piece.text for _, piece in pieces) == "".join(lines)
    share = {part: sum(one == part for one, _ in pieces) / len(pieces) for part in ("train", "val", "test")}
    assert share["val"] == pytest.approx(0.05, abs=0.01) and share["test"] == pytest.approx(0.05, abs=0.01)
    assert pieces[0][1].first and all(
        piece.first == (part != before) for (before, _), (part, piece) in pairwise(pieces)
    )
    module = data(root)
    decoded = "".join(module.tokenizer.decode(tokens(module, part), skip_special_tokens=True) for part in TEXTS)
    assert sorted(decoded) == sorted("".join(lines))
    assert module.protocol()["split"].startswith("pieces of up to 4096 characters by a hash")


def test_equal_texts_are_never_in_two_parts(tmp_path: Path):
    rows = [{"text": f"row {index % 50}"} for index in range(500)]
    root = tmp_path / "rows.jsonl"
    root.write_text("\n".join(map(json.dumps, rows)))
    parts: dict[str, set[str]] = {}
    for part, piece in found_files(root).pieces():
        parts.setdefault(piece.text, set()).add(part)
    assert len(parts) == 50 and all(len(found) == 1 for found in parts.values())
    assert {part for found in parts.values() for part in found} == {"train", "val", "test"}


def test_parts_are_told_by_names_of_files_and_folders(tmp_path: Path):
    names = {
        "train": ["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl", "training/deep/a.txt"],
        "val": ["Validation/a.txt", "dev.txt", "val_1.txt", "valid/x.txt"],
        "test": ["test.txt"],
    }
    others = ["README.txt", "testimony.txt", "trains.txt", "valley/a.txt"]
    for name in (*chain(*names.values()), *others):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text('{"text": "a"}')
    (tmp_path / ".hidden.txt").write_text("")
    corpus = found_files(tmp_path)
    for part, wanted in names.items():
        assert [path.relative_to(tmp_path).as_posix() for path in corpus.texts.files[part]] == wanted
    assert corpus.protocol()["files passed over"] == others


def test_without_test_files_validation_is_the_test_and_says_so(tmp_path: Path):
    module = data(tree(tmp_path / "a", texts={"train": TEXTS["train"], "val": ["", *TEXTS["val"]]}))
    assert len(module.items("test")) == len(module.items("val")) == -(-(len(tokens(module, "val")) - 1) // 16)
    protocol = module.protocol()
    assert protocol["test split"] == "val (there is no test file)"
    assert protocol["empty"] == {"train": 0, "val": 1, "test": 0} and protocol["documents"]["val"] == 2
    assert module.baselines()["unigram"]["perplexity"] > 1


def test_the_cache_follows_content_column_and_tokenizer(tmp_path: Path):
    def entries() -> int:
        return len([*(tmp_path / "cache").glob("tokens-*")])

    root = tree(tmp_path / "a")
    first = tokens(data(root), "val")
    shutil.copytree(root, tmp_path / "moved")
    assert tokens(data(tmp_path / "moved"), "val") == first and entries() == 1
    assert tokens(data(root, tokenizer="bytes", vocab_size=None), "val") != first and entries() == 2
    data(root, vocab_size=280).store  # noqa: B018 - makes it
    assert entries() == 3
    (root / "val.jsonl").write_text('{"text": "new"}\n')
    assert data(root).store.facts["val"]["bytes"] == 3 and entries() == 4


def test_a_damaged_cache_is_made_again_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first = tokens(data(tree(tmp_path / "a")), "train")
    (path,) = (tmp_path / "cache").glob("tokens-*/train.tokens")
    path.write_bytes(path.read_bytes()[:100])
    assert tokens(data(tmp_path / "a"), "train") == first
    assert "is damaged (train.tokens has 100 bytes instead of" in capsys.readouterr().err


def test_a_resume_with_another_text_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    state = data(tree(tmp_path / "a")).state_dict()
    for stage, said in (("fit", True), ("test", False)):
        changed = data(tree(tmp_path / "b", texts=TEXTS | {"train": ["new text"]}))
        changed.trainer = SimpleNamespace(state=SimpleNamespace(fn=stage), is_global_zero=True)
        changed.load_state_dict(changed.state_dict())
        assert capsys.readouterr().err == ""
        changed.load_state_dict(state)
        assert ("has changed since the checkpoint was written" in capsys.readouterr().err) == said


def test_bytes_bring_any_text_back(tmp_path: Path):
    module = data(tree(tmp_path / "a"), tokenizer="bytes", vocab_size=None)
    assert module.vocab_size == 257
    text = "".join(chr(code) for code in range(0, 0x110000, 97) if not 0xD800 <= code < 0xE000)
    found = module.tokenizer(text)["input_ids"]
    assert len(found) == len(text.encode()) and module.tokenizer.decode(found) == text


def words(folder: Path, **special: str) -> Path:
    vocabulary = {"<unk>": 0, "</s>": 1, "one": 2, "two": 3, "trees": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", **special).save_pretrained(folder)
    return folder


def test_a_hugging_face_folder_brings_its_tokens_and_its_end_of_documents(tmp_path: Path):
    folder = words(tmp_path / "words", eos_token="</s>")
    module = data(tree(tmp_path / "a"), tokenizer=str(folder), vocab_size=None)
    assert module.vocab_size == 5
    assert tokens(module, "val") == [1, 3, 4, 1, 0, 0, 1]  # the word of 5000 letters is cut at 4096
    assert module.store.stream("val").bytes_S.sum() == sum(len(text) for text in TEXTS["val"])


def test_a_saved_tokenizer_says_what_the_trained_one_says(tmp_path: Path):
    module = data(tree(tmp_path / "a"))
    module.tokenizer.save_pretrained(tmp_path / "tokenizer")
    loaded = load_tokenizer(str(tmp_path / "tokenizer"))
    for text in (*TEXTS["train"], "\n\n \t 's", ""):
        assert loaded(text)["input_ids"] == module.tokenizer(text)["input_ids"]
        assert loaded.decode(loaded(text)["input_ids"]) == text
    assert loaded.eos_token_id == 0


def test_a_small_text_with_few_merges_fits_the_model_that_was_asked_for(tmp_path: Path):
    module = data(tree(tmp_path / "a", texts={"train": ["ab"], "val": ["ab"]}), vocab_size=2048)
    assert module.vocab_size == 2048 and len(module.tokenizer) < 300
    padded = data(tmp_path / "a", tokenizer="bytes", vocab_size=320)
    assert padded.vocab_size == 320 and len(padded.tokenizer) == 257


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 256}, "data.vocab_size is 256"),
        (
            {"tokenizer": "bytes", "vocab_size": 200},
            "data.vocab_size is 200, but the tokenizer bytes has 257 tokens: leave it out",
        ),
        ({"context": 0}, "data.context is 0"),
        ({"tokenizer": "./nowhere"}, "no folder './nowhere'"),
        ({"text_column": "body"}, r"line 1: no 'body' \(there: text\)"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, options: dict, message: str):
    with pytest.raises(UserError, match=message):
        data(tree(tmp_path / "a"), **options)


def test_wrong_folders_are_refused(tmp_path: Path):
    (tmp_path / "none").mkdir()
    for root, message in (
        (tmp_path / "nowhere", "nowhere does not exist"),
        (tmp_path / "none", r"holds no text file \(.txt .txt.gz"),
        (tree(tmp_path / "a", texts={"train": ["a"], "test": ["b"]}), "has files for train, test, but none for val"),
        (tree(tmp_path / "b", texts={"all": ["a", "b"]}), r"too little text .* \(pieces of 4096 characters: 2\)"),
        (tree(tmp_path / "c", texts={"all": ["", ""]}), "has no text"),
    ):
        with pytest.raises(UserError, match=message):
            data(root)
    picture = tmp_path / "a.png"
    picture.write_bytes(b"")
    with pytest.raises(UserError, match="is no text file by its name"):
        data(picture)
    with pytest.raises(UserError, match="has no text for val"):
        data(tree(tmp_path / "d", texts={"train": ["a"], "val": [""]})).items("train")


def test_folders_that_are_no_tokenizers_are_refused(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty holds no tokenizer that can be read \(.*\): it needs a tokenizer.json"):
        load_tokenizer(str(tmp_path / "empty"))
    with pytest.raises(UserError, match="has no eos_token"):
        load_tokenizer(str(words(tmp_path / "words")))


def test_prompts_come_in_the_run_s_tokens(tmp_path: Path):
    folder = str(words(tmp_path / "words", eos_token="</s>"))
    (tmp_path / "lines.txt").write_text("one two\n\n trees\n")
    samples = [*PromptData(folder, predict_path=str(tmp_path / "lines.txt")).predict_dataloader()]
    assert [sample["tokens"].tolist() for sample in samples] == [[[2, 3]], [[4]]]
    assert [sample["name"] for sample in samples] == [["one two"], [" trees"]] and int(samples[0]["eos"]) == 1
    assert [sample["tokens"].tolist() for sample in PromptData(folder).predict_dataloader()] == [[[1]]]
    for options, message in (
        ({"prompt": "a", "predict_path": "b"}, "cannot both"),
        ({"predict_path": str(tmp_path / "none.txt")}, "none.txt: No such file"),
        ({"predict_path": str(tmp_path)}, "a prompt a line"),
    ):
        with pytest.raises(UserError, match=message):
            PromptData(folder, **options)
    with pytest.raises(UserError, match="holds prompts alone"):
        PromptData(folder).items("train")
