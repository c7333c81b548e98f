"""Language modelling of text: your own, or a published data set."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch.utils.data import Dataset

from nala_platform.data.base import DataModule, Part, Split
from nala_platform.data.cache import default_folder
from nala_platform.data.content import tell_change
from nala_platform.data.language import continuation
from nala_platform.data.language.baselines import language_baselines
from nala_platform.data.language.corpus import Corpus, Texts
from nala_platform.data.language.layouts.text import LAYOUTS
from nala_platform.data.language.token_store import HEAD, Head, TokenStore
from nala_platform.data.language.tokenizer import BPE_SIZE, BPE_TEXT, identity, make_tokenizer
from nala_platform.data.language.tokens import Cut, Stream
from nala_platform.data.loader import Sample
from nala_platform.data.problems import Excluded
from nala_platform.errors import UserError, look_up
from nala_platform.paths import PathOrName, StrPath, shown


@dataclass(frozen=True)
class TextSource:
    """What is read of the files, where its tokens are kept, and how blocks are taken from them.

    Attributes:
        text_column: the key or column of the text, in JSON lines and parquet.
        cache_dir: folder of tokens and trained tokenizers; ``None``: ``$XDG_CACHE_HOME/nala``, or ``~/.cache/nala``.
            Entries are named by content, so it can be shared, and emptied whenever nothing runs.
        hold_out: share, for validation and for test each, of layouts that hold out text; ``None``: the layout's own.
        bad_rows: how many rows of JSON lines or parquet that are no text are left out, each named and counted; one more
            is an error. A file that is damaged, or plain text that is not UTF-8, is one at once.
        stride: tokens that each block of validation and test adds; ``None``: the context, so blocks do not overlap.
        seed: of the order; None is the run's, ``seed_everything``.
    """

    text_column: str = "text"
    cache_dir: StrPath | None = None
    hold_out: float | None = None
    bad_rows: int = 0
    stride: int | None = None
    seed: int | None = None


class TextData(DataModule):
    """Text files in one of the `LAYOUTS`, however large.

    Each document ends with eos. It is encoded in pieces of up to 4096 characters that end with a line. Blocks of
    ``context`` tokens follow one another over the documents; each token is predicted once. Tokens lie on disk, in the
    cache, and are made again when a file, the column, the layout or the tokenizer changes: see `TokenStore`. In memory
    are some 24 bytes a block of the training part, for the order of an epoch.

    Loading has no worker processes: a block is a slice of a memory map.

    Args:
        root: the file or folder.
        layout: how it is laid out, one of `LAYOUTS`; ``text_files``: a ``.txt``, ``.jsonl`` (both also ``.gz`` and
            ``.zst``) or ``.parquet`` file, or a folder of them, whose parts are told by names or made by a hash.
        tokenizer: ``bpe``, a byte-level BPE trained on the training part; ``bytes``; else a folder with a Hugging Face
            tokenizer, or a name on the hub.
        vocab_size: tokens that the model knows. ``bpe`` is trained to have as many, 257 or more, 2048 if left out; for
            others it is their own number if left out, and may be larger.
        context: tokens of a block.
        batch_size: blocks, of one process.
        source: column, cache, hold-out, bad rows, stride and seed.
        exclude: a file that lists files which are left out; see `Excluded`.

    Raises:
        UserError: nothing there, files or rows that cannot be read, a setting out of range.
    """

    rest = "kept"  # every token is trained on in every epoch

    def __init__(
        self,
        root: StrPath,
        layout: str = "text_files",
        tokenizer: Literal["bpe", "bytes"] | str | PathOrName = "bpe",
        vocab_size: int | None = None,
        context: int = 256,
        batch_size: int = 8,
        source: TextSource = TextSource(),
        exclude: StrPath | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size, eval_batch_size=batch_size, predict_batch_size=1, num_workers=0, seed=source.seed
        )
        self.cut = Cut(context, source.stride)
        _check(source)
        self.layout, self.tokenizer_name = layout, tokenizer
        self.cache = default_folder() if source.cache_dir is None else Path(source.cache_dir).expanduser()
        folder = Path(root).expanduser()
        texts = look_up(LAYOUTS, layout, option="data.layout")(folder, Excluded(exclude, folder))
        texts = _held_out(texts, layout, source.hold_out)
        self.corpus = Corpus(folder, texts, column=source.text_column, bad_rows=source.bad_rows)
        self.tokenizer = make_tokenizer(tokenizer, vocab_size, self.corpus, self.cache)
        # a small text may have fewer merges than were asked for: the model need not know
        wanted = BPE_SIZE if tokenizer == "bpe" and vocab_size is None else vocab_size or 0
        self.vocab_size = max(len(self.tokenizer), wanted)
        self._store: TokenStore | None = None

    @property
    def store(self) -> TokenStore:
        """The tokens; made at the first use, after the model is known to fit the tokenizer."""
        if self._store is None:
            self._store = TokenStore(self.corpus, self.tokenizer, self.cache)
        return self._store

    def items(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.items`; without a prompt, documents are begun."""
        return self.cut.items(split, self._stream, self.tokenizer)

    def bytes_per_word(self, split: str) -> float | None:
        """Of the whole of a split, where the field counts perplexity by words; an end of a line is a word there."""
        facts = self.store.facts[self._part(split)]
        return facts["bytes"] / (facts["words"] + facts["lines"]) if self.corpus.texts.words else None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the name of the text's content."""
        return {"content": self.corpus.key()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Say so where training goes on with another text."""
        tell_change(self.trainer, state_dict, self.state_dict(), f"the text of {self.corpus.root}")

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        made = f"byte-level BPE of {len(self.tokenizer)} tokens, trained on the first {BPE_TEXT} characters of training"
        facts = self.store.facts
        counts = [name for name in facts["train"] if name != "groups" or facts["train"]["groups"]]
        return {
            "data": "text",
            "layout": self.layout,
            **self.corpus.protocol(),
            **{name: {part: found[name] for part, found in facts.items()} for name in counts},
            "bad rows left out": self.store.bad.count,
            "tokenizer": made
            if self.tokenizer_name == "bpe"
            else f"{shown(self.tokenizer_name)}, {len(self.tokenizer)} tokens",
            "tokenizer sha256": identity(self.tokenizer),
            **self.cut.protocol(),
            "continuation4": f"{continuation.PROTOCOL}; from the first {HEAD} tokens",
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """See `language_baselines`."""
        return language_baselines(self._stream("train"), self._stream("test"), len(self.tokenizer))

    def continuations(self) -> continuation.Items | None:
        """Multiple choice from the test part."""
        return continuation.continuation4(Head(self._stream("test"), HEAD), self.tokenizer.eos_token_id)

    def _stream(self, part: Part) -> Stream:
        return self.store.stream(self._part(part))

    def _part(self, split: Any) -> Part:
        return "val" if split == "test" and not self.corpus.has_test else split


def _check(source: TextSource) -> None:
    if source.bad_rows < 0:
        raise UserError(f"data.source.bad_rows is {source.bad_rows}: it must be 0 or more")
    if source.hold_out is not None and not 0 < source.hold_out < 0.5:
        raise UserError(f"data.source.hold_out is {source.hold_out}: it must be a share between 0 and 0.5")


def _held_out(texts: Texts, layout: str, share: float | None) -> Texts:
    if share is None:
        return texts
    if texts.held_out == "no":
        raise UserError(
            f"data.source.hold_out: nothing is held out of {layout} with files for validation: leave it out"
        )
    return texts._replace(share=share)
