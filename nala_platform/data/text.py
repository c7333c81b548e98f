"""Language modelling of your own text."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from nala_platform.data import continuation
from nala_platform.data.base import DataModule, Split
from nala_platform.data.corpus import Corpus
from nala_platform.data.loader import Sample
from nala_platform.data.pydocs import unigram
from nala_platform.data.token_cache import default_folder
from nala_platform.data.token_store import Head, TokenStore
from nala_platform.data.tokenizer import BPE_SIZE, make_tokenizer
from nala_platform.data.tokens import Blocks, Prompts, Stream
from nala_platform.errors import UserError

HEAD = 1 << 22  # tokens of the test part that items of multiple choice are taken from


@dataclass(frozen=True)
class Source:
    """Where in the files the text is, and where its tokens are kept.

    Attributes:
        text_column: the key or column of the text, in JSON lines and parquet.
        cache_dir: folder of tokens and trained tokenizers; ``None``: ``$XDG_CACHE_HOME/nala``, or ``~/.cache/nala``.
            Entries are named by content, so it can be shared, and emptied whenever nothing runs.
    """

    text_column: str = "text"
    cache_dir: str | None = None


class TextData(DataModule):
    """A text file, or a folder of ``.txt``, ``.jsonl`` (both also ``.gz`` and ``.zst``) and ``.parquet`` files.

    The parts are told by names (``train*``, ``val*`` or ``validation*``, ``test*``), or made by a hash: see `Corpus`.
    Each document ends with eos. It is encoded in pieces of up to 4096 characters that end with a line. Blocks of
    ``context`` tokens follow one another over the documents; each token is predicted once. Tokens lie on disk, in the
    cache, and are made again when a file, the column or the tokenizer changes.

    Loading has no worker processes: a block is a slice of a memory map.

    Args:
        root: the file or folder.
        tokenizer: ``bpe``, a byte-level BPE trained on the training part; ``bytes``; else a folder with a Hugging Face
            tokenizer, or a name on the hub.
        vocab_size: tokens that the model knows. ``bpe`` is trained to have as many, 257 or more, 2048 if left out; for
            others it is their own number if left out, and may be larger.
        context: tokens of a block.
        stride: tokens that each block of validation and test adds; ``None``: the context, so blocks do not overlap.
        batch_size: blocks, of one process.
        seed: of the order; None is the run's, ``seed_everything``.
        source: column and cache.

    Raises:
        UserError: nothing there, files or rows that cannot be read, a setting out of range.
    """

    rest = "kept"  # every token is trained on in every epoch

    def __init__(
        self,
        root: str,
        tokenizer: str = "bpe",
        vocab_size: int | None = None,
        context: int = 256,
        stride: int | None = None,
        batch_size: int = 8,
        seed: int | None = None,
        source: Source = Source(),
    ) -> None:
        super().__init__(
            batch_size=batch_size, eval_batch_size=batch_size, predict_batch_size=1, num_workers=0, seed=seed
        )
        if context < 1:
            raise UserError(f"data.context is {context}: it must be 1 or more")
        self.context, self.stride = context, context if stride is None else stride
        self.tokenizer_name = tokenizer
        self.cache = default_folder() if source.cache_dir is None else Path(source.cache_dir).expanduser()
        self.corpus = Corpus(Path(root).expanduser(), source.text_column)
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
        if split == "predict":
            return Prompts([""], self.tokenizer)
        part = "val" if split == "test" and not self.corpus.has_test else split
        stride = self.context if split == "train" else self.stride
        return Blocks(self.store.stream(part), context=self.context, stride=stride)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the name of the text's content."""
        return {"content": self.corpus.key()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Say so where training goes on with another text."""
        trainer = self.trainer
        if trainer and trainer.state.fn == "fit" and trainer.is_global_zero and state_dict != self.state_dict():
            print(
                f"nala: note: the text of {self.corpus.root} has changed since the checkpoint was written: training "
                "goes on with the new one, which is no exact resume",
                file=sys.stderr,
            )

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        made = f"byte-level BPE of {len(self.tokenizer)} tokens, trained on the training part"
        return {
            "data": "text",
            **self.corpus.protocol(),
            **{name: {part: facts[name] for part, facts in self.store.facts.items()} for name in self._counted()},
            "tokenizer": made
            if self.tokenizer_name == "bpe"
            else f"{self.tokenizer_name}, {len(self.tokenizer)} tokens",
            "context": self.context,
            "stride": self.stride,
            "continuation4": f"{continuation.PROTOCOL}; from the first {HEAD} tokens",
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """Unigram frequencies of the training part, and chance."""
        found = unigram(self.store.stream("train"), self._tested(), len(self.tokenizer))
        chance = {f"continuation4_{score}": 1 / continuation.CHOICES for score in ("pmi", "norm")}
        return {"unigram": found, "chance": chance}

    def continuations(self) -> continuation.Items | None:
        """Multiple choice from the test part."""
        return continuation.continuation4(Head(self._tested(), HEAD), self.tokenizer.eos_token_id)

    def _tested(self) -> Stream:
        return self.store.stream("test" if self.corpus.has_test else "val")

    def _counted(self) -> list[str]:
        return list(self.store.facts["train"])
