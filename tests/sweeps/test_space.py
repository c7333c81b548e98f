"""The space of a sweep: values by closed forms, conditions, what is typed for them, and what is refused."""

import json
import math

import optuna
import pytest
from nala_platform.sweeps.space import Space
from nala_platform.sweeps.study_file import read_settings
from optuna.trial import FixedTrial

from nala_platform.errors import UserError

ALPHA = "model.network.alpha_range"
LINES = {
    ALPHA: {"range": {"low": 0.5, "high": 5.0, "min_width": 0.25}, "when": {"model.network.attention": ["nala"]}},
    "model.network.attention": {"categorical": ["softmax", "nala", "relu"]},
    "model.network.alpha_gate": {"categorical": ["tanh", "sigmoid"], "when": {"model.network.attention": "nala"}},
    "model.optimizer": {"categorical": ["torch.optim.AdamW", "torch.optim.SGD"]},
    "model.optimizer.momentum": {"float": {"low": 0.0, "high": 0.9}, "when": {"model.optimizer": "torch.optim.SGD"}},
    "model.optimizer.lr": {"float": {"low": "1e-4", "high": "1e-2", "log": True}},
    "model.schedule.warmup": {"int": {"low": 0, "high": 500, "step": 50}},
    "model.network.stage_attention": {"categorical": [["nala"] * 4, ["nala", "nala", "softmax", "softmax"], None]},
}


@pytest.fixture(autouse=True)
def silent():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def draws(space: Space, count: int = 100) -> list[dict]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [space.suggest(study.ask()) for _ in range(count)]


@pytest.mark.parametrize(
    ("low", "fill", "expected"),
    [
        (0.5, 0.0, [0.5, 0.75]),  # the narrowest
        (0.5, 1.0, [0.5, 5.0]),  # the widest
        (4.75, 0.7, [4.75, 5.0]),  # no room left: one pair, whatever the fill
        (2.0, 0.5, [2.0, 3.625]),  # half-way between 2.25 and 5
    ],
)
def test_a_range_is_a_start_and_a_share_of_the_room_above_it(low: float, fill: float, expected: list[float]):
    space = Space({ALPHA: {"range": {"low": 0.5, "high": 5, "min_width": 0.25}}})
    assert space.parameters == (f"{ALPHA}.low", f"{ALPHA}.fill")
    found = space.suggest(FixedTrial({f"{ALPHA}.low": low, f"{ALPHA}.fill": fill}))[ALPHA]
    assert found == pytest.approx(expected, abs=1e-12) and found[1] <= 5.0


def test_every_drawn_range_is_in_order_in_bounds_and_wide_enough():
    space = Space({"a": {"range": {"low": 0.1, "high": 0.7, "min_width": 0.3}}})
    pairs = [values["a"] for values in draws(space, 500)]
    assert all(0.1 <= low and high <= 0.7 and high - low >= 0.3 - 1e-12 for low, high in pairs)
    lows = [low for low, _ in pairs]
    # uniform in [0.1, 0.4]: the mean is 0.25, its standard error 0.3 / sqrt(12 n)
    assert abs(sum(lows) / 500 - 0.25) < 4 * 0.3 / math.sqrt(12 * 500)


def test_numbers_are_drawn_in_their_bounds_on_their_steps_and_of_their_kind():
    found = draws(Space(LINES))
    assert all(
        isinstance(one["model.optimizer.lr"], float) and 1e-4 <= one["model.optimizer.lr"] <= 1e-2 for one in found
    )
    assert sum(one["model.optimizer.lr"] < 1e-3 for one in found) > 30  # half of them: uniform in the logarithm
    assert {one["model.schedule.warmup"] for one in found} <= set(range(0, 501, 50))
    assert all(type(one["model.schedule.warmup"]) is int for one in found)


def test_a_dimension_counts_where_its_condition_is_met():
    for one in draws(Space(LINES)):
        assert (ALPHA in one) == ("model.network.alpha_gate" in one) == (one["model.network.attention"] == "nala")
        assert ("model.optimizer.momentum" in one) == (one["model.optimizer"] == "torch.optim.SGD")


def test_lists_are_scalars_in_the_study_and_lists_in_the_run():
    space = Space(LINES)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    seen = []
    for _ in range(30):
        trial = study.ask()
        values = space.suggest(trial)
        assert space.values(trial.params) == values
        assert all(isinstance(value, str | int | float | None) for value in trial.params.values())
        seen.append(values["model.network.stage_attention"])
    assert all(choice in seen for choice in (["nala"] * 4, ["nala", "nala", "softmax", "softmax"], None))


def test_what_is_typed():
    words = Space(LINES).words(
        {"model.optimizer.lr": 1e-05, ALPHA: [0.5, 2.0], "model.optimizer": "torch.optim.SGD", "a": None, "b": True}
    )
    assert words == [
        *("--a=null", "--b=true", "--model.optimizer=torch.optim.SGD"),  # a class before its options
        *("--model.optimizer.lr=1e-05", f"--{ALPHA}=[0.5, 2.0]"),
    ]


def test_corners_are_few_and_show_everything():
    corners = Space(LINES).corners()
    assert len(corners) <= 6
    for path, values in {
        "model.network.attention": ["softmax", "nala", "relu"],
        "model.network.alpha_gate": ["tanh", "sigmoid"],
        "model.optimizer.momentum": [0.0, 0.9],
        "model.optimizer.lr": [1e-4, 1e-2],
        "model.schedule.warmup": [0, 500],
        ALPHA: [[0.5, 5.0], [0.5, 0.75]],
        "model.network.stage_attention": [["nala"] * 4, None],
    }.items():
        found = [corner[path] for corner in corners if path in corner]
        assert all(value in found for value in values), path
    seeds = Space({"seed_everything": {"categorical": list(range(50))}})
    assert [corner["seed_everything"] for corner in seeds.corners()] == [0, 49]


def test_corners_reach_what_counts_under_two_conditions():
    lines = {
        "a": {"categorical": ["x", "y"]},
        "b": {"categorical": [1.5, 2.5], "when": {"a": ["x", "y"]}},
        "c": {"int": {"low": 1, "high": 2}, "when": {"b": 2.5, "a": "y"}},
    }
    found = [corner["c"] for corner in Space(lines).corners() if "c" in corner]
    assert sorted(found) == [1, 2]


def test_a_grid_has_every_value():
    space = Space(
        {
            "a": {"float": {"low": 0.1, "high": 0.35, "step": "1e-1"}},
            "b": {"int": {"low": 3, "high": 5}},
            "c": {"categorical": [["x", 1], "y", None]},
        }
    )
    assert space.grid() == {"a": [0.1, 0.2, 0.3], "b": [3, 4, 5], "c": ['["x", 1]', "y", None]}


def test_an_equal_space_is_made_from_what_is_stored_and_differs_in_nothing():
    space = Space(LINES)
    again = Space(json.loads(json.dumps(space.canonical())))
    assert space.diff(again) == [] and again == space
    assert again.parameters == space.parameters
    backwards = Space(dict(reversed(LINES.items())))
    assert space.diff(backwards) == []


def test_a_diff_says_what_was_and_what_was_asked_for():
    """S9."""
    other = {
        **LINES,
        "model.optimizer.lr": {"float": {"low": 1e-4, "high": 0.1, "log": True}},
        "seed_everything": {"categorical": [0, 1]},
    }
    del other["model.schedule.warmup"]
    assert Space(LINES).diff(Space(other)) == [
        "space.model.optimizer.lr: {float: {low: 0.0001, high: 0.01, log: true, step: null}} in the sweep, "
        "{float: {low: 0.0001, high: 0.1, log: true, step: null}} was asked for",
        "space.model.schedule.warmup: {int: {low: 0, high: 500, log: false, step: 50}} in the sweep, "
        "nothing was asked for",
        "space.seed_everything: nothing in the sweep, {categorical: [0, 1]} was asked for",
    ]
    fewer = {**LINES, ALPHA: {"range": {"low": 0.5, "high": 5.0, "min_width": 0.25}}}
    assert len(Space(LINES).diff(Space(fewer))) == 1  # a condition is part of a dimension


def test_keys_are_known_by_one_spelling():
    space = Space({"model.init_args.optimizer.init_args.lr": {"float": {"low": 0.1, "high": 1}}})
    assert space.paths == ("model.optimizer.lr",)


def test_yaml_s_numbers_are_numbers_everywhere():
    """C4."""
    text = "space: {a: {float: {low: 1e-4, high: 1E-2, log: true}}, b: {categorical: [1e-3, .5e+1, '1e-3', 1e5x]}}"
    lines = read_settings(text, "my.yaml")["space"]
    assert lines == {
        "a": {"float": {"low": 0.0001, "high": 0.01, "log": True}},
        "b": {"categorical": [0.001, 5.0, "1e-3", "1e5x"]},
    }
    assert Space({"b": {"int": {"low": "1", "high": "1e2"}}}).canonical()["b"]["int"]["high"] == 100


FLOAT = {"low": 0.1, "high": 1.0}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({}, "my.yaml: space needs lines"),
        ([1], "my.yaml: space needs lines"),
        ({"a": 3}, "my.yaml: space.a: that is no such line. Write one of range, float, int, categorical"),
        ({"a": {"flaot": FLOAT}}, "space.a: 'flaot'; did you mean 'float'?"),
        ({"a": {"float": FLOAT, "int": FLOAT}}, "space.a: that is no such line"),
        ({"a": {"float": {"low": 1}}}, "space.a: float lacks high"),
        ({"a": {"float": {**FLOAT, "hihg": 3}}}, "float has no 'hihg'; did you mean 'high'?"),
        ({"a": {"float": {"low": "x", "high": 3}}}, "space.a: low needs a number, got 'x'"),
        ({"a": {"float": {"low": True, "high": 3}}}, "space.a: low needs a number, got True"),
        ({"a": {"float": {"low": 0, "high": math.inf}}}, "space.a: high needs a number, got inf"),
        ({"a": {"int": {"low": 0, "high": 2.5}}}, "space.a: high needs a whole number, got 2.5"),
        ({"a": {"float": {"low": 0, "high": 1, "log": True}}}, "with log: true also low > 0"),
        ({"a": {"float": {**FLOAT, "log": "yes"}}}, "log is true or false, got 'yes'"),
        ({"a": {"float": {**FLOAT, "step": 0}}}, "step must be above 0, got 0"),
        ({"a": {"float": {**FLOAT, "log": True, "step": 0.1}}}, "no step"),
        ({"a": {"float": {"low": 2, "high": 1}}}, "needs low <= high"),
        ({"a": {"range": {"low": 2, "high": 1}}}, "a range needs low < high"),
        ({"a": {"range": {**FLOAT, "min_width": 2}}}, "min_width in [0, 0.9], got 2"),
        ({"a": {"categorical": "tanh"}}, "categorical needs a list"),
        ({"a": {"categorical": [1, 2, 1]}}, "lists 1 more than once"),
        ({"a": {"float": FLOAT}, "a.init_args": {"float": FLOAT}}, "space has a more than once"),
        ({"--a": {"float": FLOAT}}, "'--a' is no key"),
        ({3: {"float": FLOAT}}, "3 is no key"),
        ({"folder": {"categorical": ["x"]}}, "folder says where and how a run is made"),
        (
            {"a": {"range": FLOAT}, "a.low": {"float": FLOAT}},
            "the names .low and .fill under a range's key are its own",
        ),
        ({"a": {"float": FLOAT, "when": {"b": 1}}}, "space.a: when: b is not in the space"),
        ({"a": {"float": FLOAT, "when": {"b": 1}}, "b": {"float": FLOAT}}, "b is not categorical"),
        ({"a": {"float": FLOAT, "when": {"b": 1}}, "b": {"categorical": [2, 3]}}, "b is never 1: it is one of 2, 3"),
        ({"a": {"float": FLOAT, "when": "b"}}, "when needs another key"),
        (
            {"a": {"categorical": [1, 2], "when": {"b": 1}}, "b": {"categorical": [1, 2], "when": {"a": 1}}},
            "a, b wait for each other",
        ),
        (
            {
                "a": {"categorical": [1, 2]},
                "b": {"categorical": [1, 2], "when": {"a": 1}},
                "c": {"float": FLOAT, "when": {"a": 2, "b": 1}},
            },
            "space.c never counts",
        ),
    ],
)
def test_a_wrong_line_is_named(lines, message: str):
    with pytest.raises(UserError) as raised:
        Space(lines, "my.yaml")
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({"a": {"float": FLOAT}}, "a: a grid needs a step"),
        ({"a": {"int": {"low": 1, "high": 9, "log": True}}}, "a: a grid needs a step"),
        ({"a": {"range": FLOAT}}, "a: a range has no grid: list the pairs"),
        ({"b": {"categorical": [1, 2]}, "a": {"categorical": [1], "when": {"b": 1}}}, "space.a: a grid takes no when"),
    ],
)
def test_what_has_no_grid(lines, message: str):
    with pytest.raises(UserError, match=message):
        Space(lines).grid()
