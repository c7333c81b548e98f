"""The trials of a study as work to be shared out: each is done once, whoever dies on the way.

The n trials of a sweep exist from its beginning, in the state WAITING. A claim makes one RUNNING and notes its owner;
a trial whose owner has died, or that was interrupted, is WAITING again with its parameters and its reports, and the
next owner goes on from its checkpoint. So nothing is counted twice, and n is n, over all workers and machines.
"""

import math
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from .outcome import FINISHED, PRUNED
from .owner import is_alive, is_me, me
from .plan import Plan
from .storage import exclusive, open_storage

TRIALS = "trials"  # the folder of their run folders
TAKEN_OVER = "taken_over"  # attribute of a trial of another study: its number there


class Claim(NamedTuple):
    """A trial that this process runs now.

    Attributes:
        number: of the trial, 0...
        trial: Optuna's handle on it.
        values: of the space's dimensions, by config path.
        folder: its run folder.
        seconds: that earlier attempts took.
        retries: how many of them ended by no fault of the trial's own.
    """

    number: int
    trial: optuna.Trial
    values: dict[str, Any]
    folder: Path
    seconds: float
    retries: int


class Trials:
    """One study, seen by one process.

    Args:
        folder: of the sweep.
        url: of the storage; None is the journal in the folder.
        name: of the study.
        plan: of the sweep.
        is_new: whether the study is made if it does not exist. One that exists is opened without its lock, so that
            it can be looked at whatever another process does.

    Raises:
        KeyError: the storage has no such study.
    """

    def __init__(self, folder: Path, url: str | None, name: str, plan: Plan, is_new: bool = False) -> None:
        self.folder, self.name, self.plan = folder, name, plan
        self.storage = open_storage(folder, url)
        pruner = plan.make_pruner()
        if not is_new:
            self.study = optuna.load_study(study_name=name, storage=self.storage, pruner=pruner)
            return
        with exclusive(self.storage, folder, name):
            self.study = optuna.create_study(
                study_name=name,
                storage=self.storage,
                directions=[StudyDirection[objective.direction.upper()] for objective in plan.objectives],
                pruner=pruner,
                load_if_exists=True,
            )

    def all(self) -> list[FrozenTrial]:
        """Every trial, in order of its number."""
        return self.study.get_trials(deepcopy=False)

    def own(self) -> list[FrozenTrial]:
        """Those that this sweep is to finish: its plan's number of them, without those that it took over.

        There may be more, of a plan with a larger number: they stay as they are.
        """
        return self._made()[: self.plan.n_trials]

    def _made(self) -> list[FrozenTrial]:
        return [trial for trial in self.all() if TAKEN_OVER not in trial.user_attrs]

    def provide(self, number: int) -> None:
        """See to it that there are ``number`` trials of its own; more that are there already stay."""
        with exclusive(self.storage, self.folder, self.name):
            for _ in range(number - len(self._made())):
                # not `enqueue_trial`, which marks a trial as fixed by a person: a grid would pass it by
                self.study.add_trial(create_trial(state=TrialState.WAITING))

    def take_over(self, other: "Trials") -> int:
        """Let the sampler know the finished trials of another study that lie in this one's space; how many.

        They have no part in the number of trials, and no run folder here. A study that has trials takes over none.
        """
        with exclusive(self.storage, self.folder, self.name):
            if self.all():
                return 0
            for trial in other.all():
                if trial.state == TrialState.COMPLETE and (found := self._seen_from_here(trial)) is not None:
                    self.study.add_trial(found)
            return len(self.all())

    def _seen_from_here(self, trial: FrozenTrial) -> FrozenTrial | None:
        fixed = optuna.trial.FixedTrial(trial.params)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a value outside the space is what the next lines look for
            try:
                self.plan.space.suggest(fixed)
                return create_trial(
                    values=trial.values,
                    params={name: trial.params[name] for name in fixed.distributions},
                    distributions=fixed.distributions,
                    user_attrs={TAKEN_OVER: trial.number, "outcome": FINISHED},
                )
            except ValueError:
                return None

    def claim(self) -> Claim | None:
        """Make the first trial that waits, or whose owner is dead, this process's own; None: there is none."""
        with exclusive(self.storage, self.folder, self.name):
            for frozen in self.own():
                if is_interrupted(frozen):
                    self._take_from_the_dead(frozen)
                elif frozen.state != TrialState.WAITING:
                    continue
                # False: another was faster, who came in while the database, and its lock, were away
                if self.storage.set_trial_state_values(frozen._trial_id, TrialState.RUNNING):
                    return self._own(frozen)
        return None

    def release(self) -> list[FrozenTrial]:
        """Let the trials whose owners are dead wait to be gone on with; which."""
        with exclusive(self.storage, self.folder, self.name):
            found = [each for each in self.all() if is_interrupted(each)]
            for frozen in found:
                self._take_from_the_dead(frozen)
        return found

    def _own(self, frozen: FrozenTrial) -> Claim:
        """Note the owner, and fix the trial's parameters unless they are."""
        # One seed for each trial: workers that all began with the study's would all draw the same.
        self.study.sampler = self.plan.make_sampler(frozen.number)
        trial = optuna.Trial(self.study, frozen._trial_id)
        noted = self.storage.get_trial(frozen._trial_id).user_attrs.get("attempts", [])
        place = f"{TRIALS}/{frozen.number:05d}"
        now, owner = time.time(), me()
        attempts = [*noted, {**owner, "start": now}]
        for key, value in (("owner", owner), ("heartbeat", now), ("folder", place), ("attempts", attempts)):
            trial.set_user_attr(key, value)
        return Claim(
            number=frozen.number,
            trial=trial,
            values=self.plan.space.suggest(trial),
            folder=self.folder / place,
            seconds=sum((attempt.get("end") or attempt["start"]) - attempt["start"] for attempt in noted),
            retries=sum(attempt.get("is_retry", False) for attempt in noted),
        )

    def is_ours(self, claim: Claim) -> bool:
        """Whether nobody took this process for dead, as another machine may when it is cut off, and its trial over."""
        frozen = self.storage.get_trial(claim.trial._trial_id)
        return frozen.state == TrialState.RUNNING and is_me(frozen.user_attrs.get("owner", {}))

    def beat(self, claim: Claim) -> None:
        """Show a sign of life."""
        claim.trial.set_user_attr("heartbeat", time.time())

    def report(self, claim: Claim, step: int, value: float, warmup_end: float | None = 0.0) -> bool:
        """Store an intermediate value; whether the trial is to stop, being hopeless.

        Args:
            claim: of the trial.
            step: optimizer steps that it has done.
            value: of the first objective.
            warmup_end: step up to which it is not judged, nor is any other of its length: the longest warm-up of the
                space ends there. None: nobody knows where that is, so the trial is never judged.
        """
        if len(self.plan.objectives) > 1:  # Optuna's trial reports, and prunes, by a single one alone
            self.storage.set_trial_intermediate_value(claim.trial._trial_id, step, value)
            return False
        # A run that went on from before a validation comes to it again, and to the same value.
        if step not in self.storage.get_trial(claim.trial._trial_id).intermediate_values:
            claim.trial.report(value, step)
        self.study._thread_local.cached_all_trials = None  # other workers' reports count too
        if warmup_end is None or step <= warmup_end or math.isnan(value):
            return False
        return claim.trial.should_prune()

    def give_back(self, claim: Claim, exit: str, is_retry: bool) -> None:
        """Let the trial wait to be gone on with."""
        with exclusive(self.storage, self.folder, self.name):
            frozen = self.storage.get_trial(claim.trial._trial_id)
            self._wait_again(frozen, {"end": time.time(), "exit": exit, "is_retry": is_retry})

    def finish(self, claim: Claim, outcome: str, exit: str, values: list[float] | None, **facts: Any) -> None:
        """Close the trial: COMPLETE with ``values``, PRUNED, or FAIL with the reason.

        Args:
            claim: that is done.
            outcome: a word or two.
            exit: how the process ended.
            values: of the objectives; None where there are none.
            facts: plain values to keep beside them; ``reason`` says why a trial failed.
        """
        number, frozen = claim.trial._trial_id, self.storage.get_trial(claim.trial._trial_id)
        self._note_attempt(frozen, {"end": time.time(), "exit": exit})
        for key, value in {"outcome": outcome, **facts}.items():
            self.storage.set_trial_user_attr(number, key, value)
        state = {FINISHED: TrialState.COMPLETE, PRUNED: TrialState.PRUNED}.get(outcome, TrialState.FAIL)
        if state == TrialState.PRUNED and frozen.intermediate_values:
            values = [frozen.intermediate_values[max(frozen.intermediate_values)]]
        self.storage.set_trial_state_values(number, state, values if state != TrialState.FAIL else None)

    def is_full(self) -> bool:
        """Whether every trial of its own is finished."""
        return all(trial.state.is_finished() for trial in self.own())

    def _take_from_the_dead(self, frozen: FrozenTrial) -> None:
        self._wait_again(frozen, {"end": frozen.user_attrs.get("heartbeat"), "exit": "owner died"})

    def _wait_again(self, frozen: FrozenTrial, end: dict[str, Any]) -> None:
        self._note_attempt(frozen, end)
        self.storage.set_trial_state_values(frozen._trial_id, TrialState.WAITING)

    def _note_attempt(self, frozen: FrozenTrial, end: dict[str, Any]) -> None:
        attempts = [dict(attempt) for attempt in frozen.user_attrs.get("attempts", [])]
        if attempts and "end" not in attempts[-1]:  # else its owner died between noting the end and telling the state
            attempts[-1].update(end)
            self.storage.set_trial_user_attr(frozen._trial_id, "attempts", attempts)


def is_interrupted(frozen: FrozenTrial) -> bool:
    """Whether a trial is RUNNING by its state, and its owner is dead."""
    owner = frozen.user_attrs.get("owner")
    if frozen.state != TrialState.RUNNING:
        return False
    # killed between the two: RUNNING, and nobody's
    return owner is None or not is_alive(owner, frozen.user_attrs.get("heartbeat", 0.0))
