"""WikiText-2 and WikiText-103 (Merity et al. 2016, arXiv 1609.07843), in the three forms that they are had in."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from pathlib import Path

from nala_platform.data.base import Part
from nala_platform.data.files import check_folder
from nala_platform.data.language.corpus import PARTS, Texts
from nala_platform.data.language.encoding import NUL, not_utf8, nul_in_line
from nala_platform.data.language.text_files import PIECE, Piece, Reading, cut, lines, parquet_rows
from nala_platform.data.problems import BadFileError, Excluded
from nala_platform.errors import UserError

Files = dict[Part, list[Path]]
BLANK = " \n"  # an empty line, as the raw files have it
_TITLE = re.compile(r" = [^=].* = \n?")
_SECTION = " = = "
_NAMES: dict[Part, str] = {"train": "train", "val": "valid", "test": "test"}
_SPLITS: dict[Part, str] = {"train": "train", "val": "validation", "test": "test"}
_RAW = "words joined by spaces, with @-@ for a hyphen within a word, and no word left out"
_TOKENS = (
    "words joined by spaces, with @-@ for a hyphen within a word, and <unk> for each word that is rare in training: "
    "text of it is easier than that of the raw files, and their scores do not compare"
)
_WORDS = (
    "; perplexity is a token's of the tokenizer, word_perplexity a word's: exp(nats of all tokens / (words between "
    "spaces + ends of lines)), as papers count that predict word by word. The ends of documents, an eos for each "
    "article, are predicted too and add to both, which those papers do not have"
)


def wikitext(root: Path, excluded: Excluded) -> Texts:
    """The one form of WikiText that is in ``root``.

    Raises:
        UserError: there is none, or more than one.
    """
    there = [form for form, (find, _) in _FORMS.items() if find(root)["train"]]
    if len(there) == 1:
        return _texts(root, excluded, there[0])
    if not there:
        raise UserError(
            f"data.root: {root} holds no WikiText: looked for wiki.train.raw, wiki.train.tokens and "
            "train-*.parquet, there and one folder below"
        )
    raise UserError(
        f"data.root: {root} holds WikiText in {len(there)} forms: choose by --data.layout "
        + " or ".join(f"wikitext_{form}" for form in there)
    )


def wikitext_raw(root: Path, excluded: Excluded) -> Texts:
    """``wiki.{train,valid,test}.raw``."""
    return _texts(root, excluded, "raw")


def wikitext_tokens(root: Path, excluded: Excluded) -> Texts:
    """``wiki.{train,valid,test}.tokens``."""
    return _texts(root, excluded, "tokens")


def wikitext_parquet(root: Path, excluded: Excluded) -> Texts:
    """``{train,validation,test}-00000-of-0000N.parquet``, as the Hugging Face hub has it; a row is a line.

    An article that goes on in a second file of the training part is two documents.
    """
    return _texts(root, excluded, "parquet")


def read_lines(path: Path, reading: Reading) -> Iterator[Piece]:
    """The articles of a ``.raw`` or ``.tokens`` file; their texts, joined, are the file."""
    return articles(_decoded(path, reading))


def read_rows(path: Path, reading: Reading) -> Iterator[Piece]:
    """The articles of a parquet file, the text that the raw file has: an empty row is its line of one space."""
    return articles(row or BLANK for row in parquet_rows(path, reading))


def articles(text: Iterable[str]) -> Iterator[Piece]:
    """Lines in documents: one begins at each title, `` = Title = `` between two empty lines.

    What stands before the first title belongs to the first document.

    Examples:
        >>> lines = [" \\n", " = A = \\n", " \\n", " b \\n", " = = C = = \\n", " \\n", " = B = \\n", " \\n"]
        >>> [piece.text for piece in articles(lines) if piece.first]
        [' \\n = A = \\n \\n b \\n = = C = = \\n \\n', ' = B = \\n \\n']
    """
    for _, document in groupby(_numbered(text), key=lambda line: line[0]):
        yield from cut(line[start : start + PIECE] for _, line in document for start in range(0, len(line), PIECE))


def _numbered(text: Iterable[str]) -> Iterator[tuple[int, str]]:
    number, before, line = 0, BLANK, BLANK
    seen = False
    for i, after in enumerate(chain(text, (BLANK,))):
        if i:
            if _is_title(line) and not before.strip() and not after.strip():
                number, seen = number + seen, True
            yield number, line
            before = line
        line = after


def _is_title(line: str) -> bool:
    return _TITLE.fullmatch(line) is not None and not line.startswith(_SECTION)


def _decoded(path: Path, reading: Reading) -> Iterator[str]:
    # the last of the lines is what stands behind the last end of a line: mostly nothing
    number, last = 0, b""
    for number, line in enumerate(lines(path, reading)):
        if number:
            yield _decode(last + b"\n", path, number)
        last = line
    if last:
        yield _decode(last, path, number + 1)


def _decode(line: bytes, path: Path, number: int) -> str:
    if NUL in line:
        raise BadFileError(nul_in_line(path, number))
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise BadFileError(not_utf8(path, number)) from error


def _texts(root: Path, excluded: Excluded, form: str) -> Texts:
    find, reader = _FORMS[form]
    files: Files = {part: [path for path in paths if path not in excluded] for part, paths in find(root).items()}
    missing: list[Part] = [part for part in PARTS if not files[part]]
    if missing:
        wanted = _SPLITS[missing[0]] + "-*.parquet" if form == "parquet" else f"wiki.{_NAMES[missing[0]]}.{form}"
        raise UserError(f"data.root: {root} lacks {wanted}: WikiText has train, validation and test files")
    folder = files["train"][0].parent.name
    raw = form == "raw" or (form == "parquet" and "raw" in folder)
    known = form != "parquet" or folder.startswith("wikitext-")
    meaning = (_RAW if raw else _TOKENS) if known else "text of WikiText; whether it has <unk>, its folder does not say"
    return Texts(files, reader=reader, meaning=meaning + _WORDS, words=True)


def _one_each(root: Path, suffix: str) -> Files:
    """A folder's files, or those of the only folder in it that has some."""
    for folder in (root, *_folders(root)):
        files: Files = {part: [*folder.glob(f"wiki.{name}.{suffix}")] for part, name in _NAMES.items()}
        if any(files.values()):
            return files
    return {part: [] for part in PARTS}


def _parquet(root: Path) -> Files:
    found = [folder for folder in (root, *_folders(root)) if any(folder.glob("train-*.parquet"))]
    if len(found) > 1:
        names = ", ".join(folder.name for folder in found)
        raise UserError(f"data.root: {root} holds {len(found)} data sets ({names}): give the folder of one of them")
    if not found:
        return {part: [] for part in PARTS}
    return {part: sorted(found[0].glob(f"{name}-*.parquet")) for part, name in _SPLITS.items()}


def _folders(root: Path) -> list[Path]:
    check_folder(root)
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


_FORMS: dict[str, tuple[Callable[[Path], Files], Callable[[Path, Reading], Iterator[Piece]]]] = {
    "raw": (lambda root: _one_each(root, "raw"), read_lines),
    "tokens": (lambda root: _one_each(root, "tokens"), read_lines),
    "parquet": (_parquet, read_rows),
}
