"""What a trial tells its worker, and what it does with the answer."""

import json
import math
import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from torch.nn import Linear
from torch.optim import SGD

from nala_platform.callbacks import reporter
from nala_platform.callbacks.reporter import SweepReporter
from nala_platform.errors import PrunedError, StorageError
from nala_platform.optim import WarmupCosine


@pytest.fixture
def pipes() -> Iterator[SimpleNamespace]:
    """The run's two descriptors, and the worker's."""
    answers, answer = os.pipe()
    reports, report = os.pipe()
    yield SimpleNamespace(answers=answers, answer=answer, reports=reports, report=report)
    for handle in (answers, answer, reports, report):
        try:
            os.close(handle)
        except OSError:  # closed by a test
            continue


def trainer(schedule: object | None = None, **lengths: float) -> SimpleNamespace:
    return SimpleNamespace(
        state=SimpleNamespace(fn="fit"),
        sanity_checking=False,
        is_global_zero=True,
        callback_metrics={"val/top1": 0.5},
        global_step=30,
        current_epoch=2,
        strategy=SimpleNamespace(broadcast=lambda value: value),
        lr_scheduler_configs=[] if schedule is None else [SimpleNamespace(scheduler=schedule)],
        **{"estimated_stepping_batches": 200, "num_training_batches": 21, "accumulate_grad_batches": 2, **lengths},
    )


def said(pipes: SimpleNamespace) -> dict:
    return json.loads(os.read(pipes.reports, 4096))


def test_a_report_tells_how_long_the_run_its_epoch_and_its_warm_up_are(pipes: SimpleNamespace):
    """In optimizer steps, as the step is; what nobody knows is left out."""
    schedule = WarmupCosine(SGD(Linear(1, 1).parameters(), 0.1), 200, warmup=0.4)
    callback = SweepReporter(pipes.answers, pipes.report, "val/top1")
    os.write(pipes.answer, b"go on\n")
    callback.on_validation_end(trainer(schedule), None)
    assert said(pipes) == {
        **{"step": 30, "epoch": 2, "value": 0.5},
        **{"total_steps": 200, "steps_per_epoch": 11, "warmup_steps": 80},
    }
    for lengths in ({"estimated_stepping_batches": math.inf}, {"estimated_stepping_batches": -1}):
        os.write(pipes.answer, b"go on\n")
        callback.on_validation_end(trainer(object(), num_training_batches=math.inf, **lengths), None)
        assert said(pipes) == {"step": 30, "epoch": 2, "value": 0.5, "warmup_steps": 0}


def test_a_run_stops_when_it_is_told_to_and_when_nobody_is_there(pipes: SimpleNamespace):
    callback = SweepReporter(pipes.answers, pipes.report, "val/top1")
    os.write(pipes.answer, b"stop\n")
    with pytest.raises(PrunedError, match="pruned at step 30"):
        callback.on_validation_end(trainer(), None)
    os.close(pipes.answer)
    with pytest.raises(PrunedError, match="pruned at step 30"):
        callback.on_validation_end(trainer(), None)


def test_a_worker_that_does_not_answer_is_waited_for_with_a_limit(
    pipes: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reporter, "PATIENCE", 0.05)
    callback = SweepReporter(pipes.answers, pipes.report, "val/top1")
    with pytest.raises(StorageError, match="the sweep's worker has not answered for 0 s at step 30"):
        callback.on_validation_end(trainer(), None)


def test_the_end_of_the_test_is_told_and_no_other(pipes: SimpleNamespace):
    callback = SweepReporter(pipes.answers, pipes.report, "")
    callback.on_validation_end(trainer(), None)  # an objective that is a cost is not reported
    for stage in ("fit", "validate", "test"):
        callback.teardown(trainer(), None, stage)
    assert said(pipes) == {"done": True}
    os.close(pipes.reports)
    callback.teardown(trainer(), None, "test")  # nobody listens any more
