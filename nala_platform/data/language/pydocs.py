"""Python's own documentation: the embedded data of the task ``lm``."""

import hashlib
from functools import cache
from typing import Any

from torch.utils.data import Dataset

from nala_platform.data.base import DataModule, Part, Split
from nala_platform.data.language import continuation
from nala_platform.data.language.baselines import language_baselines
from nala_platform.data.language.tokenizer import identity
from nala_platform.data.language.tokens import Cut, Stream, train_bpe
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
        self.cut, self.prompt = Cut(context, stride, "data.stride"), prompt
        self.tokenizer = _tokenizer(vocab_size)
        self.vocab_size = len(self.tokenizer)

    def items(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.items`."""
        return self.cut.items(split, self._stream, self.tokenizer, self.prompt)

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        return {
            "data": "pydocs",
            "source": "CPython pydoc_data.topics",
            "sha256": hashlib.sha256(_text().encode()).hexdigest(),
            "split": f"chunks of {CHUNK} characters: i % 10 = 9 test, 8 validation",
            # topics quote one another at length, so a part of what is scored can be known by heart
            "seen_in_training": {
                f"{part}, spans of {SPAN} tokens": round(seen(self._stream(part), self._stream("train")), 3)
                for part in ("val", "test")
            },
            "tokens": {part: len(self._stream(part).token_S) - 1 for part in pydocs()},
            "tokenizer": f"byte-level BPE of {self.vocab_size} tokens, trained on the training part",
            "tokenizer sha256": identity(self.tokenizer),
            **self.cut.protocol(),
            "continuation4": continuation.PROTOCOL,
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """See `DataModule.baselines`."""
        return language_baselines(self._stream("train"), self._stream("test"), self.vocab_size)

    def continuations(self) -> continuation.Items | None:
        """Multiple choice from the test part."""
        return continuation.continuation4(self._stream("test"), self.tokenizer.eos_token_id)

    def _stream(self, part: Part) -> Stream:
        return _stream(part, self.vocab_size)


def seen(stream: Stream, train: Stream) -> float:
    """Share, 0..1, of the stretches of `SPAN` tokens of a stream that stand somewhere in the training stream too."""
    known, own = (
        [part.token_S[i : i + SPAN].tobytes() for i in range(len(part.token_S) - SPAN + 1)] for part in (train, stream)
    )
    there = set(known)
    return sum(span in there for span in own) / max(1, len(own))
