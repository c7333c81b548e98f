"""The longest warm-up that a space and a run have, in optimizer steps."""

import math

import pytest
from nala_platform.sweeps.space import Space
from nala_platform.sweeps.warmup import Warmup, longest_warmup

SAID = {"total_steps": 1000, "steps_per_epoch": 50, "warmup_steps": 0}
COSINE, POLY = "nala_platform.optim.WarmupCosine", "nala_platform.optim.WarmupPoly"


@pytest.mark.parametrize(
    ("lines", "end"),
    [
        ({"model.schedule.warmup": {"float": {"low": 0.0, "high": 0.4}}}, 400),
        ({"model.schedule.init_args.warmup": {"float": {"low": 0.0, "high": 0.3333}}}, 334),
        ({"model.schedule.warmup": {"int": {"low": 0, "high": 500, "step": 50}}}, 500),
        ({"model.schedule.warmup": {"categorical": [0.05, 0.3, 0.1]}}, 300),
        ({"model.schedule.warmup": {"categorical": [0.05, 200, 0.1]}}, 200),
        ({"model.schedule.warmup": {"categorical": ["0.05", "0.5"]}}, 500),
        ({"model.schedule.warmup_epochs": {"int": {"low": 0, "high": 5}}}, 250),
        ({"model.schedule.warmup_epochs": {"float": {"low": 0.5, "high": 0.9}}}, 45),
        ({"model.schedule.num_warmup_steps": {"int": {"low": 0, "high": 70}}}, 70),
        ({"model.schedule.warmup_ratio": {"categorical": [0.2]}}, 200),
        ({"model.schedule": {"categorical": [{"class_path": COSINE, "init_args": {"warmup": 0.35}}, POLY]}}, 350),
        ({"model": {"categorical": [{"schedule": {"init_args": {"warmup": 12}}}]}}, 12),
        (
            {
                "model.schedule": {"categorical": [COSINE, POLY]},
                "model.schedule.warmup": {"float": {"low": 0.1, "high": 0.25}, "when": {"model.schedule": POLY}},
            },
            250,
        ),
        ({"model.optimizer.lr": {"float": {"low": 0.1, "high": 0.4}}}, 0),
        ({"model.schedule.warmup_lr": {"float": {"low": 0.1, "high": 0.4}}}, 0),  # a rate, not a length
    ],
)
def test_the_longest_of_a_space(lines: dict, end: int):
    assert longest_warmup(Space(lines)).end(SAID) == end


def test_a_fixed_warm_up_is_the_run_s_own():
    assert Warmup().end({**SAID, "warmup_steps": 150}) == 150
    assert Warmup(share=0.1).end({**SAID, "warmup_steps": 150}) == 150
    assert Warmup(share=0.2).end({**SAID, "warmup_steps": 150}) == 200
    assert Warmup().end({}) == 0


def test_a_share_of_a_run_of_unknown_length_has_no_end():
    assert Warmup(share=0.2).end({"warmup_steps": 3}) is None and Warmup(epochs=1).end({"total_steps": 5}) is None
    assert Warmup(steps=7).end({}) == 7


def test_a_share_is_that_of_the_trial_s_own_length():
    """Where the length is searched too."""
    ends = [Warmup(share=0.4).end({**SAID, "total_steps": steps}) for steps in (10, 100)]
    assert ends == [4, 40] and all(map(math.isfinite, ends))


def test_it_is_told_in_words():
    assert Warmup(share=0.4).describe() == "40 % of the run" and Warmup().describe() == ""
    assert Warmup(steps=500, share=0.1).describe() == "10 % of the run or 500 steps"
