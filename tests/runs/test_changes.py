"""R6, R8: the verdict on each key, with and without resets."""

import pytest

from nala_platform.errors import UserError
from nala_platform.runs.changes import compare, refuse

OPTIMIZER, SCHEDULE = "model.init_args.optimizer", "model.init_args.schedule"


def tree(key: str, value: object) -> dict:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


@pytest.mark.parametrize(
    ("key", "resets", "verdict"),
    [
        (f"{OPTIMIZER}.init_args.lr", (), "restored"),
        (f"{OPTIMIZER}.init_args.lr", ("lr",), "applied"),
        (f"{OPTIMIZER}.init_args.lr", ("optimizer",), "applied"),
        (f"{OPTIMIZER}.init_args.lr", ("scheduler",), "restored"),
        (f"{OPTIMIZER}.init_args.betas", ("lr",), "restored"),
        (f"{OPTIMIZER}.class_path", (), "restored"),
        (f"{OPTIMIZER}.class_path", ("optimizer",), "applied"),
        (f"{SCHEDULE}.init_args.warmup", (), "restored"),
        (f"{SCHEDULE}.init_args.warmup", ("scheduler",), "applied"),
        ("model.init_args.network.init_args.size", ("lr", "scheduler", "optimizer", "data"), "refused"),
        ("model.init_args.new_tokens", (), "applied"),
        ("task", (), "refused"),
        ("seed_everything", (), "refused"),
        ("seed_everything", ("data",), "applied"),
        ("data.class_path", (), "refused"),
        ("data.init_args.root", (), "applied"),
        ("trainer.max_epochs", (), "applied"),
    ],
)
def test_verdicts(key: str, resets: tuple[str, ...], verdict: str):
    (change,) = compare(tree(key, 1), tree(key, 2), resets)
    assert (change.key, change.stored, change.wanted, change.verdict) == (key, 1, 2, verdict)


def test_what_only_one_has_is_a_change_and_the_call_is_none():
    assert [c.key for c in compare({"a": {"b": 1}, "name": "x"}, {"a": {"c": 2}, "resume": "y"}, ())] == ["a.b", "a.c"]
    assert compare({"a": {}}, {"a": {}}, ()) == []


def test_averaging_is_on_or_off_for_good():
    for stored, wanted in ((None, 0.9), (0.9, None)):
        with pytest.raises(UserError, match=r"ema\.decay is .*begin a new run"):
            refuse(compare({"ema": {"decay": stored}}, {"ema": {"decay": wanted}}, ()))
    refuse(compare({"ema": {"decay": 0.9}}, {"ema": {"decay": 0.99}}, ()))


def test_a_run_from_before_there_was_a_key_goes_on():
    network = {"class_path": "x", "init_args": {"size": 1}}
    stored = {"model": {"init_args": {"network": network}}}
    wanted = {
        "model": {"init_args": {"network": {**network, "init_args": {"size": 1, "new": 0}}}},
        "seed_everything": 0,
    }
    found = compare(stored, wanted, ())
    refuse(found)
    assert [(c.key, c.verdict) for c in found] == [
        ("model.init_args.network.init_args.new", "applied"),
        ("seed_everything", "applied"),
    ]
