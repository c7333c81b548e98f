"""The multiple-choice set of a held-out text."""

import numpy as np
import pytest
import torch

from nala_platform.data.language.continuation import CONTEXT, SPAN, Items, continuation4
from nala_platform.data.language.pydocs import PydocsData
from nala_platform.data.language.tokens import Stream

EOS = 0


def stream(token_S: np.ndarray) -> Stream:
    made = Stream([], type("Tokenizer", (), {"eos_token_id": EOS}))
    made.token_S, made.bytes_S = token_S, token_S % 7
    return made


def text(seed: int = 0, documents: tuple[int, ...] = (150, 59, 300)) -> np.ndarray:
    """Tokens that are their own place, so that a span tells where it is from, with an eos after each document."""
    place = np.arange(1, sum(documents) + len(documents) + 1)
    place[np.cumsum(documents) + np.arange(len(documents))] = EOS
    return np.append(EOS, place)


def parts(items: Items):
    for context, choices, widths, answer in zip(*(part.numpy() for part in items[:4]), strict=True):
        yield context, choices, widths, int(answer)


def test_the_answer_goes_on_and_the_others_are_from_elsewhere():
    token_S = text()
    items = continuation4(stream(token_S), EOS, items=60)
    assert items is not None and items.eos == EOS
    assert items.context_NK.shape == (60, CONTEXT) and items.choice_NCL.shape == (60, 4, SPAN)
    begins = []
    for context, choices, widths, answer in parts(items):
        begins.append(context[0])
        assert EOS not in context and EOS not in choices
        assert np.array_equal(np.append(context, choices[answer]), np.arange(context[0], context[0] + CONTEXT + SPAN))
        seen = np.concatenate([context, *choices])
        assert len(set(seen.tolist())) == len(seen), "two spans overlap, or one does the context"
        assert all((np.diff(choice) == 1).all() for choice in choices)
        assert widths.tolist() == [sum(token % 7 for token in choice) for choice in choices]
    assert len(set(begins)) == 60


def test_it_is_a_function_of_the_text_and_the_seed():
    first, again, other = (continuation4(stream(text()), EOS, seed=seed, items=60) for seed in (0, 0, 1))
    assert all(torch.equal(one, two) for one, two in zip(first[:4], again[:4], strict=True))
    assert not torch.equal(first.context_NK, other.context_NK)
    assert not torch.equal(first.answer_N, other.answer_N)


def test_the_answers_stand_in_every_place_alike():
    count = PydocsData(vocab_size=300).continuations().answer_N.bincount(minlength=4)
    assert count.sum() == 300
    assert (count - 75).abs().max() < 4 * (300 * 3 / 16) ** 0.5


@pytest.mark.parametrize(
    "token_S",
    [np.array([EOS]), text(documents=(59, 59)), text(documents=(62,)), np.append(EOS, np.ones(500, dtype=np.int64))],
    ids=["nothing", "short documents", "one window", "the same word"],
)
def test_a_text_that_has_no_such_items_gives_none(token_S: np.ndarray):
    assert continuation4(stream(token_S), EOS, items=3) is None
