"""What counting reaches on text, to be printed beside a result."""

import math

import numpy as np

from nala_platform.data.language.continuation import CHOICES
from nala_platform.data.language.tokens import Stream


def language_baselines(train: Stream, test: Stream, vocab_size: int) -> dict[str, dict[str, float]]:
    """Unigram frequencies of the training part, and chance in the multiple choice."""
    chance = {f"continuation4_{score}": 1 / CHOICES for score in ("pmi", "norm")}
    return {"unigram": unigram(train, test, vocab_size), "chance": chance}


def unigram(train: Stream, test: Stream, vocab_size: int) -> dict[str, float]:
    """Perplexity and bits per byte of the test stream under training frequencies, each token counted once more.

    Bits per byte are left out where the bytes of the tokens are not known.
    """
    count = train.occurrences(vocab_size) + 1.0
    seen = test.occurrences(vocab_size)
    nats = float(-np.log(count / count.sum()) @ seen)
    found, width = {"perplexity": math.exp(nats / seen.sum())}, test.width()
    return found | {"bits_per_byte": nats / math.log(2) / width} if width else found
