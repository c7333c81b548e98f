"""Published text, in tiny trees of the very format."""

import json
from itertools import chain
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from nala_platform.data.language.layouts.text import LAYOUTS
from nala_platform.data.language.layouts.wikitext import articles
from nala_platform.data.language.text import TextData, TextSource
from nala_platform.data.problems import Excluded
from nala_platform.errors import UserError

# as wiki.train.raw begins: an empty line is one of a space
ARTICLE = (
    " \n = Valkyria Chronicles III = \n \n Senjō no Valkyria 3 : a game @-@ like thing . \n x = y \n"
    " \n = = Gameplay = = \n \n Played @-@ on . \n \n = = = Deep = = = \n \n = 3 \n"
)
SECOND = " \n = Tower Building = \n \n It stands . " + "long word " * 600 + "\n \n"
WIKI = {"train": ARTICLE + SECOND, "valid": " \n = A = \n \n words here \n", "test": SECOND + ARTICLE}


def wiki(root: Path, suffix: str = "raw", texts: dict[str, str] = WIKI) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (root / f"wiki.{name}.{suffix}").write_bytes(text.encode())
    return root


def wiki_parquet(root: Path) -> Path:
    folder = root / "wikitext-103-raw-v1"
    folder.mkdir(parents=True)
    for name, text in WIKI.items():
        rows = ["" if not line.strip() else line for line in text.splitlines(keepends=True)]
        half = len(rows) // 2  # an article goes on in the second file
        shards = [rows[:half], rows[half:]] if name == "test" else [rows]
        for index, shard in enumerate(shards):
            split = "validation" if name == "valid" else name
            path = folder / f"{split}-{index:05d}-of-{len(shards):05d}.parquet"
            pyarrow.parquet.write_table(pyarrow.table({"text": shard}), path)
    return root


def data(root: Path, layout: str, **options) -> TextData:
    own = {name: options.pop(name) for name in ("hold_out", "bad_rows") if name in options}
    source = TextSource(cache_dir=str(root.parent / "cache"), **own)
    return TextData(str(root), layout=layout, source=source, **{"tokenizer": "bytes", "context": 16} | options)


def texts(module: TextData, part: str) -> list[str]:
    """The documents of a part, out of its tokens."""
    found = module.tokenizer.decode(module.store.stream(part).token_S.tolist())
    return found.removeprefix("<|endoftext|>").removesuffix("<|endoftext|>").split("<|endoftext|>")


@pytest.mark.parametrize("suffix", ["raw", "tokens"])
def test_wikitext_is_cut_at_its_titles_and_nothing_is_lost(tmp_path: Path, suffix: str):
    module = data(wiki(tmp_path / "w", suffix), "wikitext")
    first, second = texts(module, "train")
    assert first.startswith(" \n = Valkyria") and first.endswith("= 3 \n \n") and second.startswith(" = Tower")
    assert first + second == WIKI["train"]
    assert {part: facts["documents"] for part, facts in module.store.facts.items()} == {"train": 2, "val": 1, "test": 2}
    protocol = module.protocol()
    assert ("<unk>" in protocol["meaning"]) == (suffix == "tokens") and "word_perplexity" in protocol["meaning"]


def test_wikitext_from_the_hub_is_the_text_of_the_raw_files(tmp_path: Path):
    raw, rows = data(wiki(tmp_path / "w"), "wikitext"), data(wiki_parquet(tmp_path / "hub"), "wikitext")
    for part in ("train", "val"):
        assert texts(raw, part) == texts(rows, part)
    for name in ("words", "lines", "bytes"):
        assert {p: f[name] for p, f in raw.store.facts.items()} == {p: f[name] for p, f in rows.store.facts.items()}
    # what was cut in two, its second half a document of its own
    assert "".join(texts(rows, "test")) == WIKI["test"]
    assert "<unk>" not in rows.protocol()["meaning"]


def test_words_are_counted_as_papers_count_them(tmp_path: Path):
    """Words between spaces, and <eos> for each line: so 245569 of WikiText's test part."""
    module = data(wiki(tmp_path / "w"), "wikitext")
    for part, name in (("train", "train"), ("val", "valid"), ("test", "test")):
        words = sum(len([*line.split(), "<eos>"]) for line in WIKI[name].splitlines())
        facts = module.store.facts[part]
        assert facts["words"] + facts["lines"] == words
        assert module.bytes_per_word(part) == pytest.approx(len(WIKI[name].encode()) / words)


def test_a_title_stands_between_empty_lines():
    lines = [" \n", " = A = \n", " b \n", " \n", " = C = \n", " \n", " = D = \n", " \n"]
    assert [piece.text for piece in articles(lines)] == ["".join(lines[:6]), "".join(lines[6:])]


def test_wikitext_that_is_not_whole_is_refused(tmp_path: Path):
    for root, layout, message in (
        (wiki(tmp_path / "a", texts={"train": "x", "valid": "y"}), "wikitext", r"lacks wiki.test.raw"),
        (
            wiki(wiki(tmp_path / "b"), "tokens"),
            "wikitext",
            "2 forms: choose by --data.layout wikitext_raw or wikitext_t",
        ),
        (tmp_path, "wikitext_parquet", "lacks train-"),
        (tmp_path / "none", "wikitext", "does not exist"),
    ):
        with pytest.raises(UserError, match=message):
            data(root, layout)
    two = wiki_parquet(tmp_path / "two")
    (two / "wikitext-2-v1").mkdir()
    (two / "wikitext-2-v1" / "train-00000-of-00001.parquet").write_bytes(b"")
    with pytest.raises(UserError, match=r"2 data sets \(wikitext-103-raw-v1, wikitext-2-v1\): give the folder of one"):
        data(two, "wikitext")
    (tmp_path / "b" / "wiki.valid.raw").write_bytes(b" \n = caf\xe9 = \n")
    with pytest.raises(UserError, match=r"wiki.valid.raw: line 2: bytes that are not UTF-8"):
        data(tmp_path / "b", "wikitext_raw").items("train")
    (tmp_path / "b" / "wiki.valid.raw").write_bytes(b" \n = caf\0 = \n")
    with pytest.raises(UserError, match=r"wiki.valid.raw: line 2: a NUL"):
        data(tmp_path / "b", "wikitext_raw").items("train")
    (tmp_path / "b" / "wiki.valid.raw").write_bytes(" \n = A = \n".encode("utf-16"))
    with pytest.raises(UserError, match=r"wiki.valid.raw: the text is in UTF-16"):
        data(tmp_path / "b", "wikitext_raw").items("train")


def slimpajama(root: Path) -> Path:
    rows = [("RedPajamaC4", "one\n"), ("RedPajamaGithub", "x = 1"), ("RedPajamaC4", ""), ("RedPajamaC4", "two")]
    for split, name in (
        ("train", "example_train_0"),
        ("validation", "example_holdout_0"),
        ("test", "example_holdout_0"),
    ):
        for chunk in ("chunk1", "chunk2"):
            path = root / split / chunk / f"{name}.jsonl.zst"
            path.parent.mkdir(parents=True)
            made = [
                {"text": f"{split} {chunk} {text}" if text else "", "meta": {"redpajama_set_name": of}}
                for of, text in rows
            ]
            path.write_bytes(zstandard.compress("".join(json.dumps(row) + "\n" for row in made).encode()))
    return root


def test_slimpajama_counts_its_sources(tmp_path: Path):
    module = data(slimpajama(tmp_path / "s"), "slimpajama")
    assert texts(module, "val")[0] == "validation chunk1 one\n" and len(texts(module, "train")) == 6
    protocol = module.protocol()
    assert protocol["groups"]["test"] == {"RedPajamaC4": 4, "RedPajamaGithub": 2} and protocol["empty"]["train"] == 2
    (tmp_path / "s" / "validation" / "chunk1" / "example_holdout_0.jsonl.zst").unlink()
    (tmp_path / "s" / "validation" / "chunk2" / "example_holdout_0.jsonl.zst").unlink()
    with pytest.raises(UserError, match="has no validation/chunk"):
        data(tmp_path / "s", "slimpajama")


def fineweb(root: Path, folder: str, rows: list[str]) -> Path:
    path = root / folder / "000_00000.parquet"
    path.parent.mkdir(parents=True)
    ids = [f"<urn:uuid:{index}>" for index in range(len(rows))]
    columns = {"text": rows, "id": ids, "dump": ["CC-MAIN-2013-20"] * len(rows), "token_count": [3] * len(rows)}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=100)
    return root


ROWS = [f"Document {index}.\n" + "word " * (index % 30) for index in range(600)]


def test_fineweb_holds_documents_out_by_their_own_text_alone(tmp_path: Path):
    module = data(fineweb(tmp_path / "f", "sample/10BT", ROWS), "fineweb", hold_out=0.1)
    parts = {part: texts(module, part) for part in ("train", "val", "test")}
    assert sorted(chain(*parts.values())) == sorted(ROWS)
    assert 30 < len(parts["val"]) < 95 and 30 < len(parts["test"]) < 95
    # whatever else is there, and in whatever order
    fineweb(tmp_path / "g", "data/CC-MAIN-2013-20", [*ROWS[300:], *(f"new {index}" for index in range(50))])
    other = data(tmp_path / "g", "fineweb", hold_out=0.1)
    assert set(texts(other, "val")) & set(ROWS) == set(parts["val"]) & set(ROWS[300:])
    assert "10 % validation" in module.protocol()["split"]
    with pytest.raises(UserError, match=r"no text for val: too few documents for a share of 0.001: raise it by --data"):
        data(fineweb(tmp_path / "h", "sample/10BT", ROWS[:3]), "fineweb").items("train")


def test_a_long_document_is_of_one_part(tmp_path: Path):
    rows = [f"{index} " + "many words\n" * 1500 for index in range(40)]
    module = data(fineweb(tmp_path / "f", "sample/10BT", rows), "fineweb", hold_out=0.2)
    assert sorted(text for part in ("train", "val", "test") for text in texts(module, part)) == sorted(rows)


def test_two_samples_of_fineweb_would_hold_the_same_documents(tmp_path: Path):
    root = fineweb(fineweb(tmp_path / "f", "sample/10BT", ROWS), "sample/100BT", ROWS)
    with pytest.raises(UserError, match="holds sample/100BT, sample/10BT, and a sample's documents are in larger ones"):
        data(root, "fineweb")
    data(root / "sample" / "10BT", "fineweb")


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_what_is_excluded_is_left_out(tmp_path: Path, layout: str):
    (tmp_path / "list").write_text("wiki.test.raw\ntest-00000-of-00002.parquet\nnothing\n")
    with pytest.raises(UserError):
        LAYOUTS[layout](tmp_path / "nowhere", Excluded(str(tmp_path / "list"), tmp_path))
    if layout == "wikitext_raw":
        wiki(tmp_path / "w")
        (tmp_path / "list").write_text("wiki.test.raw\n")
        with pytest.raises(UserError, match=r"lacks wiki\.test\.raw"):
            data(tmp_path / "w", layout, exclude=str(tmp_path / "list"))
