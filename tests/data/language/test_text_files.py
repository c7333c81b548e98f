"""Text files of every kind, whole and damaged."""

import gzip
import json
import re
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from nala_platform.data.language.text_files import PIECE, Reading, read_pieces
from nala_platform.data.problems import BadFileError
from nala_platform.errors import UserError

DOCUMENTS = ["Grüße, 日本\r\n and 🙂\u2028", "x" * 9000, "", "a line\n" * 3000, "\ufefflast"]


def rows(texts, column="text"):
    return "".join(json.dumps({"id": i, column: text}) + "\n" for i, text in enumerate(texts)).encode()


def write(folder: Path, kind: str, texts=DOCUMENTS) -> Path:
    path = folder / f"a{kind}"
    if kind == ".jsonl":
        path.write_bytes(rows(texts))
    elif kind == ".jsonl.gz":
        path.write_bytes(gzip.compress(rows(texts)))
    elif kind == ".jsonl.zst":
        whole, packer = rows(texts), zstandard.ZstdCompressor()
        path.write_bytes(packer.compress(whole[:1000]) + packer.compress(whole[1000:]))  # two frames, as pzstd writes
    else:
        table = pyarrow.table({"id": list(range(len(texts))), "text": texts})
        pyarrow.parquet.write_table(table, path, row_group_size=2)
    return path


def documents(path: Path, column: str = "text") -> list[str]:
    found: list[str] = []
    for piece in read_pieces(path, Reading(column)):
        assert len(piece.text) <= PIECE
        if piece.first:
            found.append("")
        found[-1] += piece.text
    return found


@pytest.mark.parametrize("kind", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_documents_come_back_and_are_cut_as_those_of_plain_files(tmp_path: Path, kind: str):
    path = write(tmp_path, kind)
    assert documents(path) == DOCUMENTS
    plain = []
    for index, text in enumerate(DOCUMENTS[:4]):
        file = tmp_path / f"{index}.txt"
        file.write_bytes(text.encode())
        plain += read_pieces(file, Reading())
    assert [*read_pieces(path, Reading())][: len(plain)] == plain


def test_a_long_text_is_cut_at_ends_of_lines_wherever_the_reading_stops(tmp_path: Path, monkeypatch):
    text = "ä line of text\n" * 2000
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    whole = [*read_pieces(path, Reading())]
    assert "".join(piece.text for piece in whole) == text
    assert [piece.first for piece in whole] == [True] + [False] * (len(whole) - 1)
    assert all(piece.text.endswith("\n") for piece in whole) and len(whole) == 8
    monkeypatch.setattr("nala_platform.data.language.text_files.CHUNK", 7)
    assert [*read_pieces(path, Reading())] == whole


def test_blank_lines_between_rows_are_no_rows(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n\n  \n{"text": "b"}')
    assert documents(path) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": "b"\n', "a.jsonl: line 2: no valid JSON"),
        ("a.jsonl", b'{"text": "a"}\n[1]\n', "line 2: a line must be an object"),
        ("a.jsonl", b'{"body": "a"}\n', r"line 1: no 'text' \(there: body\): name the column by --data.source.text_co"),
        ("a.jsonl", b'\n{"text": null}\n', "line 2: text is null, not text"),
        ("a.jsonl", b'{"text": 3}\n', "line 1: text is int, not text"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xe9"}\n', "line 2: bytes that are not UTF-8"),
        ("a.jsonl", b'{"text": "\\ud83d"}\n', "line 1: text holds half a surrogate pair"),
        ("a.jsonl", b"[" * 100_000, "line 1: no valid JSON"),
        ("a.txt", b"one\ntwo\ncaf\xe9\n", "a.txt: line 3: bytes that are not UTF-8: convert the file"),
        ("a.txt", b"x" * (1 << 20) + b"\n\xe2\x82", "a.txt: line 2: bytes that are not UTF-8"),
        ("a.txt", b"one\ntwo\nthr\0ee\n", "a.txt: line 3: a NUL"),
        ("a.txt", b"x" * (1 << 20) + b"\n\0", "a.txt: line 2: a NUL"),
        ("a.txt.gz", gzip.compress(b"one\n\0two"), "a.txt.gz: line 2: a NUL"),
        ("a.txt.zst", zstandard.compress(b"one\n\0two"), "a.txt.zst: line 2: a NUL"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b\\u0000"}\n', "line 2: text holds a NUL"),
        ("a.jsonl.zst", zstandard.compress(b'{"text": "b\\u0000"}\n'), "line 1: text holds a NUL"),
        ("a.jsonl.gz", b"no gzip", "a.jsonl.gz: cannot be read: Not a gzipped"),
        ("a.jsonl.gz", gzip.compress(rows(DOCUMENTS))[:-30], "a.jsonl.gz: cannot be read"),
        ("a.jsonl.zst", b"no zstd", "a.jsonl.zst: cannot be read"),
        ("a.jsonl.zst", zstandard.compress(b'{"text": "a"}\n' * 999)[:-3], "it ends in the middle of its zstd data"),
        ("a.parquet", b"PAR1 nothing PAR1", "a.parquet: cannot be read as parquet"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, message: str):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        documents(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz", "a.jsonl.zst"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_utf_16_and_32_are_named_and_the_advice_converts_them(tmp_path: Path, name: str, encoding: str):
    """The name in the message, given to Python's decoder as iconv would be, gives the text without NULs."""
    text = '{"text": "Smörgåsbord, naïve: a line of text"}\n' * 3
    data = text.encode(encoding)
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(Path(name).suffix, bytes)
    (tmp_path / name).write_bytes(pack(data))
    with pytest.raises(BadFileError, match=rf"{name}: the text is in .*, not UTF-8: .*iconv") as caught:
        documents(tmp_path / name)
    named = re.search(r"iconv -f (\S+) -t UTF-8", str(caught.value))
    assert named is not None and data.decode(named[1]) == text


def test_other_encodings_are_not_guessed(tmp_path: Path):
    for encoding in ("cp1251", "shift_jis", "gb18030"):
        (tmp_path / "a b.txt").write_bytes(
            {"cp1251": "текст", "shift_jis": "文字", "gb18030": "汉字"}[encoding].encode(encoding)
        )
        with pytest.raises(BadFileError, match=r"iconv -f ENCODING -t UTF-8 'a b.txt'") as caught:
            documents(tmp_path / "a b.txt")
        assert "LATIN" not in str(caught.value)


def test_a_nul_in_a_row_of_parquet_is_a_bad_row(tmp_path: Path):
    path = write(tmp_path, ".parquet", ["a", "b\0", "c"])
    with pytest.raises(BadFileError, match="row 2: text holds a NUL") as caught:
        documents(path)
    assert caught.value.problem.kind == "NUL"


def test_rows_of_parquet_are_counted_over_its_groups(tmp_path: Path):
    texts = ["a"] * 700 + [None]
    with pytest.raises(UserError, match="row 701: text is null"):
        documents(write(tmp_path, ".parquet", texts))
    with pytest.raises(UserError, match=r"no 'body' \(there: id, text\)"):
        documents(tmp_path / "a.parquet", "body")


@pytest.mark.parametrize(("kind", "package"), [(".parquet", "pyarrow"), (".jsonl.zst", "zstandard")])
def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch, kind: str, package: str):
    path = write(tmp_path, kind)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.parquet", None)
    with pytest.raises(UserError, match=rf"{package}, which is not installed: pip install 'nala-platform\[text\]'"):
        documents(path)
