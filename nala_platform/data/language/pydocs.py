"""Python's own documentation: the embedded data of the task ``lm``."""

import hashlib
import math
from functools import cache
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from nala_platform.data.base import DataModule, Part, Split
from nala_platform.data.language import continuation
from nala_platform.data.language.tokenizer import identity
from nala_platform.data.language.tokens import Blocks, Prompts, Stream, checked_stride, train_bpe
from nala_platform.data.loader import Sample

CHUNK = 4096
SPAN = 32


@cache
def pydocs() -> dict[Part, tuple[str, ...]]:
    """CPython's `pydoc_data.topics`, in the order of their names, cut into chunks of 4096 characters.

    Chunk i is of the test part where i % 10 is 9, of the validation part where it is 8, else of the training part.
    """
    chunks = [_text()[start : start + CHUNK] for start in range(0, len(_text()), CHUNK)]
    return {
        "train": tuple(chunk for i, chunk in enumerate(chunks) if i % 10 < 8),
        "val": tuple(chunks[8::10]),
        "test": tuple(chunks[9::10]),
    }


@cache
def _text() -> str:
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


@cache
def _tokenizer(vocab_size: int) -> Any:
    return train_bpe(pydocs()["train"], vocab_size)


@cache
def _stream(part: Part, vocab_size: int) -> Stream:
    return Stream(pydocs()[part], _tokenizer(vocab_size))


class PydocsData(DataModule):
    """CPython's documentation topics as tokens of a byte-level BPE that is trained on the training part.

    Args:
        context: tokens of a block.
        stride: tokens that each block of validation and test adds; ``None``: the context, so blocks do not overlap.
        vocab_size: of the tokenizer, 257 or more.
        batch_size: blocks, of one process.
        num_workers: loader processes.
        seed: of the order; None is the run's, ``seed_everything``.
        prompt: what ``predict`` continues.
    """

    rest = "kept"  # every token is trained on in every epoch

    def __init__(
        self,
        context: int = 256,
        stride: int | None = None,
        vocab_size: int = 2048,
        batch_size: int = 8,
        num_workers: int = 0,
        seed: int | None = None,
        prompt: str = "",
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=batch_size,
            predict_batch_size=1,
            num_workers=num_workers,
            seed=seed,
        )
        self.context, self.stride, self.prompt = context, checked_stride(context, stride, "data.stride"), prompt
        self.tokenizer = _tokenizer(vocab_size)
        self.vocab_size = len(self.tokenizer)

    def items(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.items`."""
        if split == "predict":
            return Prompts([self.prompt], self.tokenizer)
        stride = self.context if split == "train" else self.stride
        return Blocks(_stream(split, self.vocab_size), context=self.context, stride=stride)

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        return {
            "data": "pydocs",
            "source": "CPython pydoc_data.topics",
            "sha256": hashlib.sha256(_text().encode()).hexdigest(),
            "split": f"chunks of {CHUNK} characters: i % 10 = 9 test, 8 validation",
            # topics quote one another at length, so a part of what is scored can be known by heart
            "seen_in_training": {
                f"{part}, spans of {SPAN} tokens": round(
                    seen(_stream(part, self.vocab_size), _stream("train", self.vocab_size)), 3
                )
                for part in ("val", "test")
            },
            "tokens": {part: len(_stream(part, self.vocab_size).token_S) - 1 for part in pydocs()},
            "tokenizer": f"byte-level BPE of {self.vocab_size} tokens, trained on the training part",
            "tokenizer sha256": identity(self.tokenizer),
            "context": self.context,
            "stride": self.stride,
            "continuation4": continuation.PROTOCOL,
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """See `DataModule.baselines`."""
        train, test = _stream("train", self.vocab_size), _stream("test", self.vocab_size)
        chance = {f"continuation4_{score}": 1 / continuation.CHOICES for score in ("pmi", "norm")}
        return {"unigram": unigram(train, test, self.vocab_size), "chance": chance}

    def continuations(self) -> continuation.Items | None:
        """Multiple choice from the test part."""
        return continuation.continuation4(_stream("test", self.vocab_size), self.tokenizer.eos_token_id)


def unigram(train: Stream, test: Stream, vocab_size: int) -> dict[str, float]:
    """Perplexity and bits per byte of the test stream under training frequencies, each token counted once more.

    Bits per byte are left out where the bytes of the tokens are not known.
    """
    count = train.occurrences(vocab_size) + 1.0
    seen = test.occurrences(vocab_size)
    nats = float(-np.log(count / count.sum()) @ seen)
    found, width = {"perplexity": math.exp(nats / seen.sum())}, test.width()
    return found | {"bits_per_byte": nats / math.log(2) / width} if width else found


def seen(stream: Stream, train: Stream) -> float:
    """Share, 0..1, of the stretches of `SPAN` tokens of a stream that stand somewhere in the training stream too."""
    known, own = (
        [part.token_S[i : i + SPAN].tobytes() for i in range(len(part.token_S) - SPAN + 1)] for part in (train, stream)
    )
    there = set(known)
    return sum(span in there for span in own) / max(1, len(own))
