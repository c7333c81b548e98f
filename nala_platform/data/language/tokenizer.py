"""Which tokenizer a name means: one trained here, the bytes, or one of Hugging Face's; and where it is kept."""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from transformers import AutoTokenizer

from nala_platform.data.cache import kept, key
from nala_platform.data.language.corpus import Corpus
from nala_platform.data.language.tokens import train_bpe
from nala_platform.errors import UserError

BPE_SIZE = 2048
BPE_TEXT = 1 << 28  # characters of the training part, its first, that a BPE is trained on
BYTES_SIZE = 257
BUILT_IN = ("bpe", "bytes")


def make_tokenizer(name: str, vocab_size: int | None, corpus: Corpus, cache: Path) -> Any:
    """A fast Hugging Face tokenizer with an end of documents.

    Args:
        name: ``bpe``, a byte-level BPE trained on the training part, its first `BPE_TEXT` characters; ``bytes``, the
            256 bytes and eos; anything else is a folder that ``save_pretrained`` has written, or a name on the hub.
        vocab_size: of ``bpe``; None: 2048. Another tokenizer must have no more tokens than that.
        corpus: read for ``bpe`` alone.
        cache: where the trained one is kept.

    Raises:
        UserError: there is no such tokenizer, it lacks something, or the size is wrong.
    """
    if name == "bpe":
        return _trained(BPE_SIZE if vocab_size is None else vocab_size, corpus, cache)
    tokenizer = train_bpe([], BYTES_SIZE) if name == "bytes" else load_tokenizer(name)
    if vocab_size is not None and vocab_size < len(tokenizer):
        raise UserError(
            f"data.vocab_size is {vocab_size}, but the tokenizer {name} has {len(tokenizer)} tokens: leave it out"
        )
    return tokenizer


def load_tokenizer(name: str, *, eos: Literal["needed", "optional"] = "needed") -> Any:
    """The tokenizer in a folder, or the one of a name on the hub; this machine's copy is taken when there is one.

    Raises:
        UserError: there is none, it is none of the fast ones, or it has no end of documents where it needs one.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir() and (name.startswith((".", "~", "/")) or name.count("/") > 1 or not name):
        raise UserError(
            f"data.tokenizer: no folder {name!r}: give {', '.join(BUILT_IN)}, a folder or a name on the hub"
        )
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(folder) if folder.is_dir() else name, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if folder.is_dir():
            raise UserError(
                f"data.tokenizer: {name} holds no tokenizer that can be read ({_first_line(error)}): it needs a "
                "tokenizer.json, as save_pretrained writes it"
            ) from error
        tokenizer = _from_hub(name)
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"data.tokenizer: {name} is none of the fast tokenizers (tokenizer.json): convert it first")
    if eos == "needed" and tokenizer.eos_token_id is None:
        raise UserError(
            f"data.tokenizer: {name} has no eos_token, which ends documents: add one to its tokenizer_config.json"
        )
    return tokenizer


def identity(tokenizer: Any) -> str:
    """What the tokens of a text depend on, as a name."""
    return hashlib.sha256(f"{tokenizer.backend_tokenizer.to_str()}{tokenizer.eos_token_id}".encode()).hexdigest()


def _trained(vocab_size: int, corpus: Corpus, cache: Path) -> Any:
    def make(folder: Path) -> dict[str, Any]:
        train_bpe(_first_texts(corpus), vocab_size).save_pretrained(folder)
        return {}

    folder = cache / f"bpe-{key(corpus=corpus.key(), vocab_size=vocab_size, characters=BPE_TEXT)}"
    kept(folder, make)
    return load_tokenizer(str(folder))


def _first_texts(corpus: Corpus) -> Iterator[str]:
    characters = 0
    for part, piece in corpus.pieces():
        if part == "train":
            characters += len(piece.text)
            yield piece.text
        if characters >= BPE_TEXT:
            return


def _from_hub(name: str) -> Any:
    print(f"nala: note: no tokenizer {name} on this machine: asking the Hugging Face hub", file=sys.stderr)
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"data.tokenizer: no folder {name!r} here, and the Hugging Face hub does not give it "
            f"({_first_line(error)}): give {', '.join(BUILT_IN)} or the folder of a tokenizer"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(" .:")
