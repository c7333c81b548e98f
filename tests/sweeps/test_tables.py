"""The numbers of a sweep's report, against values computed by hand."""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from made import ALPHA, MECHANISMS, SCORES, add, alpha_params, alpha_study, make_study, mechanisms_study
from nala_platform.sweeps import charts, tables
from nala_platform.sweeps.results import Results, headline, read_results
from nala_platform.sweeps.trials import TAKEN_OVER
from optuna.trial import TrialState

OBJECTIVES = ("val/top1", "parameters", "seconds_per_step")


def test_mean_and_deviation_over_seeds(tmp_path: Path):
    table = tables.over_seeds(read_results(mechanisms_study(tmp_path), tmp_path))
    assert table is not None
    assert table.header == ["attention", "seeds finished", "val/top1", "test/top1"]
    # (0.02^2 + 0 + 0.02^2) / 2 = 0.02^2; two values a and b deviate by |a - b| / sqrt(2) = 0.01414
    assert table.rows == [
        ["nala", "3 of 3", "0.97 ± 0.01", "0.87 ± 0.01"],
        ["softmax", "2 of 3", "0.96 ± 0.014", "0.86 ± 0.014"],
        ["relu", "1 of 3", "0.93 (one run)", "0.83 (one run)"],
        ["linear", "3 of 3", "0.92 ± 0.02", "0.82 ± 0.02"],
    ]
    assert table.marked == (0,)


def test_the_smallest_mean_comes_first_where_less_is_better(tmp_path: Path):
    study = make_study({**MECHANISMS, "objectives": ["val/loss"]})
    for (name, scores), seed in product(SCORES.items(), range(2)):
        if scores[seed] is not None:
            add(study, tmp_path, {"model.network.attention": name, "seed_everything": seed}, [scores[seed]])
    table = tables.over_seeds(read_results(study, tmp_path))
    assert table is not None
    assert [row[0] for row in table.rows] == ["linear", "relu", "softmax", "nala"]


def test_a_mechanism_without_a_finished_seed_comes_last(tmp_path: Path):
    study = make_study(MECHANISMS)
    add(study, tmp_path, {"model.network.attention": "relu", "seed_everything": 0}, None, TrialState.FAIL)
    add(study, tmp_path, {"model.network.attention": "nala", "seed_everything": 0}, [0.5])
    table = tables.over_seeds(read_results(study, tmp_path))
    assert table is not None
    assert [row[:3] for row in table.rows] == [["nala", "1 of 1", "0.5 (one run)"], ["relu", "0 of 1", ""]]


def test_a_space_without_seeds_has_no_such_table(tmp_path: Path):
    assert tables.over_seeds(read_results(alpha_study(tmp_path, 3), tmp_path)) is None


def by_brute_force(rows: list[list[float]], signs: list[int]) -> list[int]:
    losses = [[sign * value for sign, value in zip(signs, row, strict=True)] for row in rows]
    front = []
    for number, mine in enumerate(losses):
        worse = [
            all(a <= b for a, b in zip(other, mine, strict=True))
            and any(a < b for a, b in zip(other, mine, strict=True))
            for other in losses
            if all(map(math.isfinite, other))
        ]
        if all(map(math.isfinite, mine)) and not any(worse):
            front.append(number)
    return front


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_front_is_that_of_brute_force(count: int, seed: int, tmp_path: Path):
    random = np.random.default_rng(seed)
    # few levels, so that there are equal values; and some trials that are infinitely good
    rows = random.integers(0, 6, (40, count)).astype(float)
    rows[random.integers(0, 40, 3), 0] = math.inf
    study = make_study({**ALPHA, "objectives": list(OBJECTIVES[:count])})
    for row in rows:
        params = alpha_params(1.0, 0.5, "tanh", 1e-3, float(random.uniform(0, 0.4)))
        add(study, tmp_path, params, row.tolist())
    results = read_results(study, tmp_path)
    expected = by_brute_force(rows.tolist(), [-1, 1, 1][:count])
    assert [trial.number for trial in results.front] == expected
    assert results.best is not None and results.best.number in expected
    assert results.best.values[0] == rows[np.isfinite(rows[:, 0]), 0].max()


def results_of_all_kinds(folder: Path) -> Results:
    study = make_study({**ALPHA, "n_trials": 9})
    ends = [
        ([0.5], TrialState.COMPLETE, {"outcome": "finished"}),
        ([math.inf], TrialState.COMPLETE, {"outcome": "finished"}),
        ([0.7], TrialState.COMPLETE, {"outcome": "finished"}),
        ([0.9], TrialState.PRUNED, {"outcome": "pruned"}),
        (None, TrialState.FAIL, {"outcome": "diverged", "reason": "the loss is nan"}),
        (None, TrialState.FAIL, {"outcome": "diverged", "reason": "the loss is nan"}),
        (None, TrialState.FAIL, {"outcome": "killed", "reason": "the process was ended by SIGKILL"}),
        (None, TrialState.RUNNING, {}),
    ]
    for values, state, facts in ends:
        add(study, folder, alpha_params(1.0, 0.5, "tanh", 1e-3, 0.1), values, state, **facts)
    add(study, folder, {}, None, TrialState.WAITING)
    return read_results(study, folder)


def test_counts_and_reasons(tmp_path: Path):
    assert tables.outcomes(results_of_all_kinds(tmp_path)).rows == [
        ["finished", "3", "0, 1, 2", ""],
        ["diverged", "2", "4, 5", "the loss is nan (2 times)"],
        ["pruned", "1", "3", ""],
        ["killed", "1", "6", "the process was ended by SIGKILL"],
        ["running", "1", "7", ""],
        ["waiting", "1", "8", ""],
    ]


def test_every_trial_has_its_row(tmp_path: Path):
    table = tables.all_trials(results_of_all_kinds(tmp_path))
    assert table.header[:4] == ["trial", "outcome", "val/top1", "alpha_range low"]
    # low 1, and of the room from 1.25 to 5 the half: 3.125
    assert table.rows[2] == ["2", "finished", "0.7", "1", "3.125", "tanh", "0.001", "0.1", "1 min 2 s", "1", ""]
    assert table.rows[8] == ["8", "waiting", *[""] * 7, "0", ""]
    assert [row[2] for row in table.rows] == ["0.5", "inf", "0.7", "0.9", "", "", "", "", ""]
    assert table.marked == (2,)  # neither the pruned one, nor the infinite


def test_the_headline_counts(tmp_path: Path):
    assert headline(results_of_all_kinds(tmp_path)) == (
        "2 of 9 trials finished, 1 pruned, 1 running, 1 waiting, 3 failed (diverged 2, killed 1). "
        "The best is trial 2: val/top1 0.7."
    )


def test_a_setting_that_does_not_count_is_empty(tmp_path: Path):
    space = {
        "model.network.attention": {"categorical": ["nala", "softmax"]},
        "model.network.alpha_range": {
            "range": {"low": 0.5, "high": 5.0, "min_width": 0.0},
            "when": {"model.network.attention": "nala"},
        },
        "model.optimizer.lr": {"float": {"low": 1e-4, "high": 1e-2, "log": True}},
    }
    study = make_study({**ALPHA, "space": space})
    path = "model.network.alpha_range"
    add(study, tmp_path, {"model.network.attention": "softmax", "model.optimizer.lr": 1e-3}, [0.5])
    nala = {"model.network.attention": "nala", f"{path}.low": 0.5, f"{path}.fill": 1.0, "model.optimizer.lr": 2e-3}
    add(study, tmp_path, nala, [0.6])
    results = read_results(study, tmp_path)
    columns = {column.label: column for column in results.columns(results.trials)}
    assert columns["alpha_range low"].values == [None, 0.5]
    assert columns["alpha_range high"].values == [None, 5.0]
    assert columns["lr"].is_log and not columns["attention"].is_log


def test_a_trial_whose_owner_died_while_it_drew_its_values_has_none(tmp_path: Path):
    study = make_study(ALPHA)
    add(study, tmp_path, alpha_params(1.0, 0.5, "tanh", 1e-3, 0.1), None, TrialState.FAIL)
    results = read_results(study, tmp_path)
    results.trials[0]._params = {"model.network.alpha_range.low": 1.0}
    assert results.settings(results.trials[0]) == {}


def test_scores_stand_beside_the_baselines(tmp_path: Path):
    results = read_results(alpha_study(tmp_path, 1), tmp_path)
    table = tables.scores(results, results.trials[0])
    assert table is not None
    assert table.header == ["", "test/top1", "test/top5", "test/loss"]
    assert table.rows[1:] == [["majority class", "0.1", "", ""], ["logistic regression", "0.9667", "", ""]]


def test_the_protocol_tells_space_data_and_versions(tmp_path: Path):
    rows = dict(tables.protocol(read_results(alpha_study(tmp_path, 2), tmp_path)).rows)
    assert rows["objective"] == "val/top1, maximize, its best value"
    assert rows["model.optimizer.lr"] == "float low 0.0001, high 0.1, log True, step None"
    assert rows["data: images"] == "train 1257, val 180, test 360"
    assert "torch 2.14.1" in rows["versions"] and "optuna" in rows["versions"]


def test_a_column_that_says_nothing_is_left_out(tmp_path: Path):
    results = read_results(alpha_study(tmp_path, 3), tmp_path)
    assert tables.outcomes(results).header == ["outcome", "trials", "which"]
    assert tables.all_trials(results).header[-1] == "attempts"
    assert tables.settings(results, results.trials[0]).rows[0] == ["model.network.alpha_range", "[3.207, 3.873]"]


def test_what_was_taken_over_from_another_study_is_no_result(tmp_path: Path):
    study = make_study({**ALPHA, "n_trials": 1})
    for values, facts in (([0.9], {TAKEN_OVER: 3}), ([0.5], {})):
        add(study, tmp_path, alpha_params(1.0, 0.5, "tanh", 1e-3, 0.1), values, **facts)
    results = read_results(study, tmp_path)
    assert headline(results) == "1 of 1 trials finished. The best is trial 1: val/top1 0.5."
    assert dict(tables.protocol(results).rows)["trials of another study"] == "1, known to the sampler alone"
    figure = charts.history(results)
    assert figure is not None and figure.axes[0].get_xlim() == (0.5, 1.5)
