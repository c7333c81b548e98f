"""Text to tokens to blocks.

Shapes: S tokens of a stream, T tokens of a block.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from nala_platform.data.base import Part, Split
from nala_platform.data.language.token_ids import byte_widths
from nala_platform.data.loader import Sample
from nala_platform.data.order import Draw
from nala_platform.errors import UserError

EOS = "<|endoftext|>"
IGNORED = -100
SLICE = 1 << 22  # tokens that are counted at once


def train_bpe(documents: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE: token 0 ends documents, then the 256 bytes, then merges; any text is encoded without loss.

    Raises:
        UserError: a vocabulary too small for the bytes.
    """
    if vocab_size < 257:
        raise UserError(f"data.vocab_size is {vocab_size}: 256 bytes and the end of a document need 257 or more")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, bos_token=EOS)


class Stream:
    """Documents one after another, each ended by eos, with one eos before the first, which nothing predicts.

    Attributes:
        token_S: (S,) of integers.
        bytes_S: (S,) of integers, the bytes of text that each token stands for; eos stands for none. They sum to the
            text's.
    """

    token_S: np.ndarray
    bytes_S: np.ndarray

    def __init__(self, documents: Iterable[str], tokenizer: Any) -> None:
        eos = tokenizer.eos_token_id
        tokens, widths = [np.array([eos])], [np.array([0])]
        for document in documents:
            token_N, bytes_N = encode([document], tokenizer)[0]
            tokens.append(np.append(token_N, eos))
            widths.append(np.append(bytes_N, 0))
        self.token_S = np.concatenate(tokens).astype(np.int64)
        self.bytes_S = np.concatenate(widths).astype(np.int64)

    def occurrences(self, vocab_size: int) -> np.ndarray:
        """How often each token is predicted: int64 ``(vocab_size,)``."""
        found = np.zeros(vocab_size, dtype=np.int64)
        for start in range(1, len(self.token_S), SLICE):
            found += np.bincount(self.token_S[start : start + SLICE], minlength=vocab_size)
        return found

    def width(self) -> int:
        """Bytes of all tokens that are predicted."""
        size = len(self.token_S)
        return sum(int(self.bytes_S[start : start + SLICE].sum(dtype=np.int64)) for start in range(1, size, SLICE))


def encode(texts: list[str], tokenizer: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """The tokens of each text, without special ones, and the bytes that each stands for: int64 ``(N,)`` both.

    The bytes of a text add up to its own. Texts given together are encoded on all cores.
    """
    width_V = _widths(tokenizer)
    if width_V is None:
        return _by_places(texts, tokenizer)
    backend, found = tokenizer.backend_tokenizer, []
    backend.no_truncation()
    backend.no_padding()
    for text, one in zip(texts, backend.encode_batch_fast(texts, add_special_tokens=False), strict=True):
        token_N = np.array(one.ids, dtype=np.int64)
        bytes_N = width_V[token_N]
        # a tokenizer may change or drop letters, and a special token stands for none of its own
        whole = int(bytes_N.sum()) == len(text.encode("utf-8", "surrogatepass"))
        found.append((token_N, bytes_N) if whole else _by_places([text], tokenizer)[0])
    return found


@lru_cache(maxsize=2)
def _widths(tokenizer: Any) -> np.ndarray | None:
    return byte_widths(tokenizer, len(tokenizer))


def _by_places(texts: list[str], tokenizer: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """As `encode`, of any tokenizer: by the letters that each token covers; slower."""
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    found = []
    for text, tokens, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        ends = _byte_ends(text, [end for _, end in offsets])
        found.append((np.array(tokens, dtype=np.int64), np.diff(ends, prepend=0)))
    return found


def _byte_ends(document: str, ends: list[int]) -> np.ndarray:
    """Where each token ends, in UTF-8 bytes; the last one takes what a tokenizer dropped at the end."""
    if not ends:
        return np.zeros(0, dtype=np.int64)
    letters = np.frombuffer(document.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    widths = 1 + np.sum([letters >= first for first in (0x80, 0x800, 0x10000)], axis=0, dtype=np.int64)
    total = np.append(0, widths.cumsum())
    found = total[np.maximum.accumulate(ends)]
    found[-1] = total[-1]
    return found


def checked_stride(context: int, stride: int | None, key: str) -> int:
    """The stride of evaluation: as given, or the context.

    Args:
        context: tokens of a block, ``data.context``.
        stride: as the user gave it under ``key``.
        key: where it stands.

    Raises:
        UserError: one of them is out of range.
    """
    if context < 1:
        raise UserError(f"data.context is {context}: it must be 1 or more")
    if stride is None:
        return context
    if not 1 <= stride <= context:
        raise UserError(f"{key} is {stride}: it must be 1..context, and data.context is {context}")
    return stride


class Blocks(Dataset[Sample]):
    """Each token of a stream but the first is predicted once: from up to ``context`` tokens before it.

    Block k predicts ``stride`` tokens, the last block what is left. With a stride below the context, blocks overlap,
    and what an earlier one has predicted is ignored. Short blocks are filled up at the right and ignored there, by
    position.

    A sample: ``tokens (T,)`` int64, ``target (T,)`` int64 (-100: ignored), ``bytes (T,)`` int64 of the target
    (-1: ignored), ``name``.
    """

    def __init__(self, stream: Stream, *, context: int, stride: int) -> None:
        self.stream, self.context, self.stride = stream, context, checked_stride(context, stride, "data.stride")

    def __len__(self) -> int:
        return -(-(len(self.stream.token_S) - 1) // self.stride)

    def __getitem__(self, draw: Draw) -> Sample:
        first = draw.index * self.stride
        last = min(first + self.stride, len(self.stream.token_S) - 1)
        begin = max(0, first + self.stride - self.context)
        length, ignored = last - begin, first - begin
        sample = {
            "tokens": torch.zeros(self.context, dtype=torch.int64),
            "target": torch.full((self.context,), IGNORED),
            "bytes": torch.full((self.context,), -1),
        }
        # the stream may lie on disk, in smaller integers
        tokens = torch.from_numpy(self.stream.token_S[begin : last + 1].astype(np.int64))
        sample["tokens"][:length] = tokens[:-1]
        sample["target"][ignored:length] = tokens[ignored + 1 :]
        sample["bytes"][ignored:length] = torch.from_numpy(self.stream.bytes_S[first + 1 : last + 1].astype(np.int64))
        return sample | {"name": f"block{draw.index}"}


class Prompts(Dataset[Sample]):
    """Prompts to be continued, of any length, one a batch; an empty one starts a document.

    A sample: ``tokens (T,)`` int64, ``eos``, the token that ends a document, ``name``, the prompt. A tokenizer without
    an end of documents gives no ``eos``, and begins with token 0.
    """

    def __init__(self, prompts: list[str], tokenizer: Any) -> None:
        self.prompts, self.tokenizer = prompts, tokenizer

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, draw: Draw) -> Sample:
        prompt, eos = self.prompts[draw.index], self.tokenizer.eos_token_id
        found = self.tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"]
        if eos is None:
            return {"tokens": torch.tensor(found or [0]), "name": prompt}
        return {"tokens": torch.tensor(found or [eos]), "eos": eos, "name": prompt}


class Cut:
    """How a module cuts its streams: blocks that do not overlap to train on, blocks at a stride to score.

    Args:
        context: tokens of a block, ``data.context``.
        stride: tokens that each block of validation and test adds; ``None``: the context.
        key: where the stride stands, for the message.

    Raises:
        UserError: one of them is out of range.
    """

    def __init__(self, context: int, stride: int | None, key: str = "data.source.stride") -> None:
        self.context, self.stride = context, checked_stride(context, stride, key)

    def items(
        self, split: Split, stream: Callable[[Part], Stream], tokenizer: Any, prompt: str = ""
    ) -> Dataset[Sample]:
        """What a split's loader reads, of the stream that ``stream`` gives; ``predict`` goes on with the prompt."""
        if split == "predict":
            return Prompts([prompt], tokenizer)
        return Blocks(stream(split), context=self.context, stride=self.context if split == "train" else self.stride)

    def protocol(self) -> dict[str, Any]:
        """The lines that say how much of the text before it a token is predicted from."""
        return {"context": self.context, "stride": self.stride}
