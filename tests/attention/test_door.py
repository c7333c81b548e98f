"""Each mistake at the door: one line that holds the option, the numbers and the mend."""

import re

import pytest
import torch

from nala_platform.attention import ATTENTION, nala_attention
from nala_platform.errors import UserError

SHAPES = {"query": (2, 3, 5, 8), "key": (2, 3, 5, 8), "value": (2, 3, 5, 4)}


def call(attention, **changes):
    tensors = {name: changes.pop(name, torch.zeros(shape)) for name, shape in SHAPES.items()}
    return attention(**tensors, **changes)


MISTAKES = {
    "no head": ({name: torch.zeros(2, 0, 5, 8) for name in ("query", "key", "value")}, "at least one head of size 1"),
    "three axes": ({"query": torch.zeros(2, 5, 8)}, "(batch, heads, tokens, size), got query (2, 5, 8)"),
    "heads": ({"key": torch.zeros(2, 1, 5, 8)}, "agree in batch and heads, got query (2, 3, 5, 8), key (2, 1, 5, 8)"),
    "batch": ({"value": torch.zeros(1, 3, 5, 4)}, "agree in batch and heads"),
    "head size": ({"key": torch.zeros(2, 3, 5, 6)}, "same head size, got query (2, 3, 5, 8), key (2, 3, 5, 6)"),
    "value length": ({"value": torch.zeros(2, 3, 6, 4)}, "same number of tokens"),
    "no key": ({"key": torch.zeros(2, 3, 0, 8), "value": torch.zeros(2, 3, 0, 4)}, "at least one query and one key"),
    "integers": ({"key": torch.zeros(2, 3, 5, 8, dtype=torch.int64)}, "floating point, got torch.float32, torch.int64"),
    "mixed float64": ({"value": torch.zeros(2, 3, 5, 4).double()}, "float64 and narrower"),
    "causal cross": ({"query": torch.zeros(2, 3, 1, 8), "is_causal": True}, "N=1 queries and M=5 keys"),
    "gate": ({"alpha_gate": "sigmod"}, "alpha_gate='sigmod' is unknown; did you mean 'sigmoid'? Known: tanh, sigmoid"),
    "direction": ({"direction": "xyz"}, "direction='xyz' is unknown. Known: split, cosine"),
    "direction near": ({"direction": "cosinus"}, "did you mean 'cosine'?"),
    "backend": ({"backend": "refrence"}, "backend='refrence' is unknown; did you mean 'reference'? Known: reference"),
    "range order": ({"alpha_range": (4.5, 1.5)}, "low < high, got (4.5, 1.5)"),
    "range equal": ({"alpha_range": (2.0, 2.0)}, "low < high, got (2.0, 2.0)"),
    "range zero": ({"alpha_range": (0.0, 2.0)}, "alpha_range low must be a finite number above 0, got 0.0"),
    "range infinite": ({"alpha_range": (0.5, float("inf"))}, "alpha_range high must be a finite number above 0"),
    "range NaN": ({"alpha_range": (float("nan"), 2.0)}, "alpha_range low must be a finite number above 0, got nan"),
    "range heads": ({"alpha_range": (0.5, torch.ones(4))}, "alpha_range high must be a float or a tensor with one"),
    "range length": ({"alpha_range": (0.5, 1.0, 2.0)}, "alpha_range must be (low, high), got 3 entries"),
    "key power": ({"key_power": 0}, "key_power must be a finite number above 0, got 0"),
    "eps": ({"eps": -1e-6}, "eps must be a finite number above 0, got -1e-06"),
    "rope length": ({"rope": (torch.ones(4, 8), torch.ones(4, 8))}, "rope cos must have shape (N, D) = (5, 8)"),
    "rope half": (
        {"rope": (torch.ones(5, 8), torch.ones(5, 4))},
        "rope sin must have shape (N, D) = (5, 8), got (5, 4",
    ),
    "rope odd": (
        {
            "query": torch.zeros(2, 3, 5, 7),
            "key": torch.zeros(2, 3, 5, 7),
            "rope": (torch.ones(5, 7), torch.ones(5, 7)),
        },
        "even head size, got D=7",
    ),
    "rope cross": (
        {"query": torch.zeros(2, 3, 1, 8), "rope": (torch.ones(1, 8), torch.ones(1, 8))},
        "N=1 queries and M=5 keys",
    ),
    "mask dtype": ({"key_padding_mask": torch.zeros(2, 5)}, "bool with True = ignore, got torch.float32"),
    "mask shape": (
        {"key_padding_mask": torch.zeros(2, 3, dtype=torch.bool)},
        "key_padding_mask must have shape (B, M) = (2, 5), got (2, 3)",
    ),
}


@pytest.mark.parametrize(("changes", "message"), MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize("name", ATTENTION)
def test_mistake_is_one_clear_line(name, changes, message):
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        call(ATTENTION[name], **changes)
    assert "\n" not in str(caught.value)


def test_what_is_accepted():
    """An odd head without rope, int bounds, a range half learned, queries fewer than keys."""
    odd = {"query": torch.zeros(2, 3, 5, 7), "key": torch.zeros(2, 3, 5, 7)}
    assert call(nala_attention, **odd).shape == (2, 3, 5, 4)
    assert call(nala_attention, alpha_range=(1, 4), key_power=2).shape == (2, 3, 5, 4)
    assert call(nala_attention, alpha_range=(0.5, torch.ones(3))).shape == (2, 3, 5, 4)
    assert call(nala_attention, query=torch.zeros(2, 3, 1, 8)).shape == (2, 3, 1, 4)
