"""The layouts of ready tokens on disk, by name."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from nala_platform.data.base import Part
from nala_platform.data.files import files_under
from nala_platform.data.problems import Excluded, Problem, report
from nala_platform.errors import UserError

HEADER = 256 * 4  # bytes, of llm.c's files: int32 magic, version, number of tokens, zeros
_NAMES: dict[Part, str] = {"train": "train", "val": "val", "test": "test"}


class Vocabulary(NamedTuple):
    """Which ids there can be.

    Attributes:
        size: how many; None: the files do not tell.
        eos: the one between documents; None: none.
        name: for the protocol.
        origin: ``file``, a header or a file beside it says so; ``custom``, it is what such files mostly hold.
    """

    size: int | None
    eos: int | None
    name: str
    origin: Literal["file", "custom"] = "file"


class TokenFile(NamedTuple):
    """Ids one after another in a file: ``tokens`` of them, of numpy's type ``kind``, from byte ``offset`` on."""

    path: Path
    kind: str
    offset: int
    tokens: int


class Ready(NamedTuple):
    """The files of each part, in the order in which they are one stream, and what their ids are."""

    files: dict[Part, list[TokenFile]]
    vocabulary: Vocabulary


Layout = Callable[[Path, Excluded], Ready]

GPT2 = Vocabulary(50257, 50256, "GPT-2")
OWN = Vocabulary(None, None, "one of its own (meta.pkl, which is not read: it could run code)")
# magic and version -> type, vocabulary; llm.c begins each document with Llama 3's 128000, <|begin_of_text|>
_LLM_C: dict[tuple[int, int], tuple[str, Vocabulary]] = {
    (20240520, 1): ("<u2", GPT2),
    (20240801, 7): ("<u4", Vocabulary(128256, 128000, "Llama 3")),
}
_CHOICES = 20240522  # magic of llm.c's multiple-choice files, such as hellaswag_val.bin: no running text


def nanogpt(root: Path, excluded: Excluded) -> Ready:
    """nanoGPT's ``train.bin`` and ``val.bin``: uint16 ids without a header.

    They are taken for GPT-2's, unless the options say otherwise; where ``meta.pkl`` lies beside them, they must.

    Raises:
        UserError: a file is not there, or no such file.
    """
    files: dict[Part, list[TokenFile]] = {}
    for part, name in _NAMES.items():
        path = root / f"{name}.bin"
        if path in excluded or not path.is_file():
            files[part] = []
            continue
        size = path.stat().st_size
        if size >= HEADER and tuple(np.fromfile(path, "<i4", 2)) in _LLM_C:
            raise UserError(f"data.root: {path} begins with llm.c's header: give --data.layout llm_c")
        files[part] = _usable([(path, "<u2", 0, size)])
    _both(files, root, "train.bin and val.bin")
    return Ready(files, OWN if (root / "meta.pkl").exists() else GPT2._replace(origin="custom"))


def llm_c(root: Path, excluded: Excluded) -> Ready:
    """llm.c's and modded-nanoGPT's ``*_{train,val}_*.bin``, such as ``fineweb_train_000001.bin``: a header, then ids.

    uint16 of GPT-2, or uint32 of Llama 3, as the header says. Files of multiple choice are passed over.

    Raises:
        UserError: files of a part are missing, or two vocabularies are mixed.
    """
    found = [path for path in files_under(root, (".bin",)) if path not in excluded] if root.is_dir() else []
    files: dict[Part, list[TokenFile]] = {}
    vocabularies: dict[Vocabulary, Path] = {}
    for part, name in _NAMES.items():
        listed = []
        for path in found:
            if re.search(rf"(^|[_-]){name}([_.-]|$)", path.stem) and (head := _header(path)) is not None:
                kind, vocabulary = head
                vocabularies.setdefault(vocabulary, path)
                listed.append((path, kind, HEADER, path.stat().st_size))
        files[part] = _usable(listed)
    _both(files, root, "*_train_*.bin and *_val_*.bin")
    if len(vocabularies) > 1:
        mixed = " and ".join(f"{path.name} ({vocabulary.name})" for vocabulary, path in vocabularies.items())
        raise UserError(f"data.root: {root} mixes vocabularies: {mixed}: give a folder with one of them")
    return Ready(files, next(iter(vocabularies)))


LAYOUTS: dict[str, Layout] = {"nanogpt": nanogpt, "llm_c": llm_c}


def _header(path: Path) -> tuple[str, Vocabulary] | None:
    """The type and vocabulary of a file; None where it is none, which is reported if it is a mistake."""
    head = np.fromfile(path, "<i4", 256)
    if len(head) < 256:
        report([Problem("empty", path, f"{path.stat().st_size} bytes, less than llm.c's header: write it again")])
        return None
    magic, version, tokens = (int(value) for value in head[:3])
    if magic == _CHOICES:
        return None
    if (magic, version) not in _LLM_C:
        text = f"begins with {magic}, version {version}, which is none of llm.c's headers; without one: layout nanogpt"
        report([Problem("unreadable", path, text)])
        return None
    kind, vocabulary = _LLM_C[magic, version]
    there = (path.stat().st_size - HEADER) / np.dtype(kind).itemsize
    if there != tokens:
        text = f"holds {there:g} tokens, but its header says {tokens}: it was cut off; write it again"
        report([Problem("wrong size", path, text)])
        return None
    return kind, vocabulary


def _usable(listed: Iterable[tuple[Path, str, int, int]]) -> list[TokenFile]:
    """Those of the files (path, type, offset, bytes) that hold whole ids."""
    files = []
    for path, kind, offset, size in listed:
        tokens, rest = divmod(size - offset, np.dtype(kind).itemsize)
        if rest:
            report([Problem("wrong size", path, f"{size} bytes are no whole number of {kind} tokens: write it again")])
        elif not tokens:
            report([Problem("empty", path, "no tokens in it: write it again or take it out")])
        else:
            files.append(TokenFile(path, kind, offset, tokens))
    return files


def _both(files: dict[Part, list[TokenFile]], root: Path, wanted: str) -> None:
    missing = [part for part in ("train", "val") if not files[part]]
    if missing:
        there = ", ".join(sorted(path.name for path in root.glob("*.bin"))[:8]) or "no .bin file"
        raise UserError(
            f"data.root: {root} has no tokens for {' and '.join(missing)}: wanted {wanted} (there: {there})"
        )
