"""What ids are worth: the bytes that they stand for, and a tokenizer where nobody knows their texts.

Shapes: V ids.
"""

import json
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def byte_widths(tokenizer: Any, size: int) -> np.ndarray | None:
    """The bytes of text that each id stands for, int64 ``(V,)``; special tokens and ids without a token stand for none.

    Args:
        tokenizer: a fast one.
        size: V.

    Returns:
        None where the tokenizer is no byte-level BPE: then an id alone does not tell.
    """
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    decoder = described["decoder"] or {}
    steps = {step.get("type") for step in (decoder, *decoder.get("decoders", ()))}
    if described["model"].get("type") != "BPE" or "ByteLevel" not in steps:
        return None
    width_V = np.zeros(size, dtype=np.int64)
    for text, index in described["model"]["vocab"].items():
        width_V[index] = len(text)  # a letter of its alphabet is a byte
    for added in described["added_tokens"]:
        width_V[added["id"]] = 0 if added["special"] else len(added["content"].encode())
    return width_V


def ids_tokenizer(size: int, eos: int | None) -> PreTrainedTokenizerFast:
    """A tokenizer whose texts are ids: ``15 2077 3``; what is no id reads as the end of documents, or as 0.

    Examples:
        >>> tokenizer = ids_tokenizer(100, eos=99)
        >>> tokenizer("15 3 word")["input_ids"], tokenizer.decode([15, 3])
        ([15, 3, 99], '15 3')
    """
    unknown = str(0 if eos is None else eos)
    tokenizer = Tokenizer(models.WordLevel({str(index): index for index in range(size)}, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    ends = {} if eos is None else {"eos_token": unknown, "bos_token": unknown}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends)
