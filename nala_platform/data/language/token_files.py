"""Language modelling of ready tokens: nanoGPT's and llm.c's files.

Shapes: S tokens of a stream, V ids.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from nala_platform.data.base import DataModule, Part, Split
from nala_platform.data.cache import digest, key
from nala_platform.data.content import tell_change
from nala_platform.data.files import check_folder
from nala_platform.data.language import continuation
from nala_platform.data.language.baselines import language_baselines
from nala_platform.data.language.corpus import BLOCK, BLOCKS, SMALL
from nala_platform.data.language.layouts.tokens import LAYOUTS, Ready, Vocabulary
from nala_platform.data.language.ready_stream import ReadyStream
from nala_platform.data.language.token_ids import byte_widths, ids_tokenizer
from nala_platform.data.language.token_store import HEAD, Head
from nala_platform.data.language.tokenizer import identity, load_tokenizer
from nala_platform.data.language.tokens import Cut
from nala_platform.data.loader import Sample
from nala_platform.data.problems import Excluded
from nala_platform.errors import UserError, look_up
from nala_platform.paths import PathOrName, StrPath, shown


@dataclass(frozen=True)
class TokenSource:
    """How blocks are taken from the tokens.

    Attributes:
        stride: tokens that each block of validation and test adds; ``None``: the context, so blocks do not overlap.
        seed: of the order; None is the run's, ``seed_everything``.
        eos: the id between documents, where the files are of a vocabulary of their own; ``None``: none.
    """

    stride: int | None = None
    seed: int | None = None
    eos: int | None = None


class TokenFileData(DataModule):
    """Files of ids in one of the `LAYOUTS`, however large; read through a memory map, nothing is copied.

    The files of a part are one stream, in the order of their names: its first id is predicted by nothing, each other
    one once. Without a test file, the validation part is the test part too.

    Text and bits per byte need the tokenizer that the ids are from. Without one, prompts and samples are ids
    (``15 2077 3``), and bits per byte are left out. With one that is not byte-level they are left out too.

    Args:
        root: the folder.
        layout: one of `LAYOUTS`.
        tokenizer: the folder or the hub's name of the Hugging Face tokenizer that the ids are from, or None.
        vocab_size: ids that the model knows; None: as many as the layout's vocabulary or the tokenizer has. Fewer than
            GPT-2's, for nanoGPT's files: they are of a vocabulary of their own.
        context: tokens of a block.
        batch_size: blocks, of one process.
        source: stride, seed, eos.
        exclude: a file that lists files which are left out; see `Excluded`.

    Raises:
        UserError: files are missing or damaged, or a setting is out of range.
    """

    rest = "kept"  # every token is trained on in every epoch

    def __init__(
        self,
        root: StrPath,
        layout: str = "nanogpt",
        tokenizer: str | PathOrName | None = None,
        vocab_size: int | None = None,
        context: int = 1024,
        batch_size: int = 8,
        source: TokenSource = TokenSource(),
        exclude: StrPath | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size, eval_batch_size=batch_size, predict_batch_size=1, num_workers=0, seed=source.seed
        )
        self.cut = Cut(context, source.stride)
        self.root, self.layout, self.tokenizer_name = Path(root).expanduser(), layout, tokenizer
        find = look_up(LAYOUTS, layout, option="data.layout")
        check_folder(self.root)
        self.ready: Ready = find(self.root, Excluded(exclude, self.root))
        named = None if tokenizer is None else load_tokenizer(tokenizer, eos="optional")
        self.vocabulary = _meant(self.ready.vocabulary, vocab_size, named)
        size, eos = _ids(self.vocabulary, vocab_size, source.eos, named)
        self.vocab_size, self.eos = size, eos
        self.tokenizer = ids_tokenizer(size, eos) if named is None else named
        self.width_V = None if named is None else byte_widths(named, size)

    def items(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.items`; without a prompt, documents are begun."""
        return self.cut.items(split, self._stream, self.tokenizer)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the name of the tokens' content."""
        return {"content": self._content}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Say so where training goes on with other tokens."""
        tell_change(self.trainer, state_dict, self.state_dict(), f"the text of {self.root}")

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        counted: dict[Part, np.ndarray] = {
            part: self._counts(part) for part, files in self.ready.files.items() if files
        }
        documents = {} if self.eos is None else {"documents": {p: self._documents(p) for p in counted}}
        bytes_known = {} if self.width_V is None else {"bytes": {p: int(c @ self.width_V) for p, c in counted.items()}}
        return {
            "data": "token files",
            "layout": self.layout,
            "root": shown(self.root),
            "content": self._content,
            "files": {part: len(files) for part, files in self.ready.files.items()},
            "split": "by the names of files",
            "test split": "test" if self.ready.files["test"] else "val (there is no test file)",
            "vocabulary": self.vocabulary.name,
            "tokens": {part: int(count.sum()) for part, count in counted.items()},
            **documents,
            **bytes_known,
            "bits_per_byte": self._bytes(),
            "tokenizer": "none: ids" if self.tokenizer_name is None else shown(self.tokenizer_name),
            "tokenizer sha256": None if self.tokenizer_name is None else identity(self.tokenizer),
            "eos": self.eos,
            **self.cut.protocol(),
            "continuation4": f"{continuation.PROTOCOL}; from the first {HEAD} tokens",
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """See `language_baselines`."""
        return language_baselines(self._stream("train"), self._stream("test"), self.vocab_size)

    def continuations(self) -> continuation.Items | None:
        """Multiple choice from the test part, where documents have an end."""
        return None if self.eos is None else continuation.continuation4(Head(self._stream("test"), HEAD), self.eos)

    def _stream(self, part: Part) -> ReadyStream:
        part = "val" if part == "test" and not self.ready.files["test"] else part
        return ReadyStream(self.ready.files[part], self.vocab_size, self.width_V)

    def _counts(self, part: Part) -> np.ndarray:
        if part not in self._counted:
            self._counted[part] = self._stream(part).occurrences(self.vocab_size)
        return self._counted[part]

    @cached_property
    def _content(self) -> str:
        parts = self.ready.files.items()
        files = [
            [p, f.path.name, digest(f.path, whole=SMALL, block=BLOCK, blocks=BLOCKS)] for p, fs in parts for f in fs
        ]
        return key(files=files)

    @cached_property
    def _counted(self) -> dict[Part, np.ndarray]:
        return {}

    def _documents(self, part: Part) -> int:
        """Ends of documents, or beginnings: the first id, which nothing predicts, may be one."""
        return int(self._counts(part)[self.eos] + (self._stream(part).token_S[:1] == self.eos).sum())

    def _bytes(self) -> str:
        if self.tokenizer_name is None:
            return "left out: which bytes the ids stand for is known with --data.tokenizer alone"
        if self.width_V is None:
            return f"left out: {self.tokenizer_name} is no byte-level BPE, so an id alone does not tell its bytes"
        return "bytes of the ids' own texts, 0 for eos"


def _meant(found: Vocabulary, vocab_size: int | None, tokenizer: Any) -> Vocabulary:
    """The vocabulary, where the files do not say so themselves as the options have it."""
    if found.origin == "file" or (tokenizer is None and (vocab_size is None or vocab_size >= (found.size or 0))):
        return found
    told = "the tokenizer's" if tokenizer is not None else f"one of its own of {vocab_size} ids"
    return Vocabulary(None, None, told)


def _ids(vocabulary: Vocabulary, vocab_size: int | None, eos: int | None, tokenizer: Any) -> tuple[int, int | None]:
    """How many ids the model knows, and which one ends documents."""
    least = vocabulary.size or 0
    if tokenizer is not None:
        least = max(len(tokenizer), least) if vocabulary.size is None else least
        if len(tokenizer) < least:
            raise UserError(
                f"data.tokenizer has {len(tokenizer)} tokens, but the ids are of {vocabulary.name} with {least}"
            )
    size = vocab_size or least
    if not size:
        raise UserError("data.vocab_size: meta.pkl says that the ids are of a vocabulary of their own: give its size")
    if size < least:
        raise UserError(f"data.vocab_size is {size}, but {least} ids are possible: leave it out, or give more")
    found = vocabulary.eos if eos is None else eos
    if tokenizer is not None and eos is None and vocabulary.eos is None:
        found = tokenizer.eos_token_id
    if found is not None and not 0 <= found < size:
        raise UserError(f"data.source.eos is {found}: it must be an id, 0..{size - 1}")
    return size, found
