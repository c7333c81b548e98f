"""A database server that is away for a while, as when it starts again, ends no trial: its storage waits for it."""

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from nala_platform.errors import StorageError

PATIENCE = 90.0  # seconds; with a sign of life before it, less than after which an owner elsewhere is given up
_PAUSE = 5.0  # seconds, at most, between two attempts
# What Optuna's cache before the database, and we, call.
_CALLS = (
    *("create_new_study", "create_new_trial", "_create_new_trial", "get_all_studies", "get_all_trials", "_get_trials"),
    *("get_study_directions", "get_study_id_from_name", "get_study_name_from_id", "get_study_user_attrs"),
    *("get_study_system_attrs", "set_study_user_attr", "set_study_system_attr", "get_trial", "_set_trial_param"),
    *("get_trial_id_from_study_id_trial_number", "_get_best_trial_id", "set_trial_state_values"),
    *("set_trial_intermediate_value", "set_trial_user_attr", "set_trial_system_attr"),
)
Result = TypeVar("Result")


def patient(call: Callable[..., Result]) -> Callable[..., Result]:
    """``call``, again and again while the database is away.

    Raises:
        StorageError: it has been away for too long.
    """

    @functools.wraps(call)
    def wrapped(*args: Any, **options: Any) -> Result:
        end, pause = time.monotonic() + PATIENCE, 0.25
        is_again = False
        while True:
            try:
                return call(*args, **options)
            except UpdateFinishedTrialError:
                if not is_again or call.__name__ != "set_trial_state_values":
                    raise
                return True  # type: ignore[return-value]  # the first attempt was heard, its answer was lost
            except (StorageInternalError, DBAPIError) as error:
                cause = error.__cause__ if isinstance(error, StorageInternalError) else error
                if not isinstance(cause, OperationalError | InterfaceError):
                    raise
                if time.monotonic() > end:
                    reason = str(cause).splitlines()[0]
                    raise StorageError(f"the sweep's database has been away for {PATIENCE:.0f} s: {reason}") from error
            is_again = True
            time.sleep(pause)
            pause = min(_PAUSE, 2.0 * pause)

    return wrapped


class PatientStorage(RDBStorage):
    """Optuna's storage in a database, with `patient` calls once it is open."""


for _name in _CALLS:
    setattr(PatientStorage, _name, patient(getattr(RDBStorage, _name)))
