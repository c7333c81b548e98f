"""Multiple choice from held-out text: which of four spans goes on from the context?

Shapes: S tokens of a stream, N items, K tokens of a context, C choices, L tokens of a choice.
"""

from collections.abc import Iterator
from itertools import count, islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nala_platform.data.language.tokens import Stream
from nala_platform.data.order import Draw, sample_seed

ITEMS, CONTEXT, SPAN, CHOICES = 300, 40, 20, 4
PROTOCOL = (
    f"{ITEMS} items of the test part: {CONTEXT} tokens of context, the {SPAN} that follow them against {CHOICES - 1} "
    "spans from elsewhere in it, no span over the end of a document, seed 0, chance 0.25; pmi: log p(choice | context) "
    "- log p(choice | eos), norm: log p(choice | context) a token, norm_byte: a byte; stderr: sqrt(p (1 - p) / n)"
)
_TRIES = 1000  # spans looked at for one item before a text counts as too repetitive
_START, _ANSWER, _ITEM = 0, 1, 2  # independent streams of hashes of one seed; item i has the stream _ITEM + i


class Items(NamedTuple):
    """Multiple-choice items; choice ``answer`` of each is what follows its context in the text.

    Attributes:
        context_NK: int64 tokens.
        choice_NCL: int64 tokens.
        bytes_NC: int64, UTF-8 bytes of each choice.
        answer_N: int64 in ``0..C-1``.
        eos: the token that stands for no context.
    """

    context_NK: Tensor
    choice_NCL: Tensor
    bytes_NC: Tensor
    answer_N: Tensor
    eos: int


def continuation4(stream: Stream, eos: int, *, seed: int = 0, items: int = ITEMS) -> Items | None:
    """The set ``continuation4`` of a held-out stream: a pure function of its arguments.

    An item is a window of 40 + 20 tokens; windows differ but may overlap, so on a short text the items are not quite
    independent. The three wrong spans lie outside the window, clear of each other, and no two choices are equal. No
    window and no span holds an eos.

    Returns:
        ``None`` where the text is too short, or too repetitive, for ``items`` items.
    """
    token_S = stream.token_S
    windows, spans = (_without(eos, token_S, length) for length in (CONTEXT + SPAN, SPAN))
    if len(windows) < items:
        return None
    begins = [int(windows[index]) for index in _distinct(items, _draws(len(windows), seed, _START))]
    starts_NC = [_choices(token_S, begin, spans, seed, _ITEM + item) for item, begin in enumerate(begins)]
    if any(len(starts) < CHOICES for starts in starts_NC):
        return None
    places = list(islice(_draws(CHOICES, seed, _ANSWER), items))
    for starts, place in zip(starts_NC, places, strict=True):
        starts[0], starts[place] = starts[place], starts[0]
    inside_NCL = np.array(starts_NC)[..., None] + np.arange(SPAN)
    return Items(
        context_NK=torch.from_numpy(token_S[np.array(begins)[:, None] + np.arange(CONTEXT)]),
        choice_NCL=torch.from_numpy(token_S[inside_NCL]),
        bytes_NC=torch.from_numpy(stream.bytes_S[inside_NCL].sum(-1)),
        answer_N=torch.tensor(places),
        eos=eos,
    )


def _without(eos: int, token_S: np.ndarray, length: int) -> np.ndarray:
    """Where windows of ``length`` tokens begin that hold no eos."""
    seen = np.append(0, (token_S == eos).cumsum())
    return np.flatnonzero(seen[length:] == seen[:-length])


def _choices(token_S: np.ndarray, begin: int, spans: np.ndarray, seed: int, stream: int) -> list[int]:
    """Where the four choices begin, the true one first; fewer than four where none were found."""
    starts = [begin + CONTEXT]
    for index in islice(_draws(len(spans), seed, stream), _TRIES):
        span = int(spans[index])
        apart = all(abs(span - start) >= SPAN for start in starts) and not begin - SPAN < span < begin + CONTEXT
        text_L = token_S[span : span + SPAN]
        if apart and not any(np.array_equal(text_L, token_S[start : start + SPAN]) for start in starts):
            starts.append(span)
        if len(starts) == CHOICES:
            break
    return starts


def _distinct(items: int, draws: Iterator[int]) -> list[int]:
    found: dict[int, None] = {}
    while len(found) < items:
        found[next(draws)] = None
    return list(found)


def _draws(size: int, seed: int, stream: int) -> Iterator[int]:
    return (sample_seed(seed, Draw(index, epoch=stream)) % size for index in count())
