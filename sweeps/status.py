"""``nala sweep status``: how it stands with each trial of a sweep."""

import sys
import time
from pathlib import Path

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nala_platform.paths import quoted

from .live import elapsed
from .results import duration, headline, last_value, number, read_results, word


def print_status(study: Study, folder: Path) -> None:
    """Print the sweep's result so far and a row for each trial.

    A trial that is called running in the storage but whose process is dead is called interrupted: it waits for a
    worker to go on with it.
    """
    results = read_results(study, folder)
    metric = results.plan.objectives[0].metric
    table = Table()
    for name in ("trial", "state", metric, "step", "time", "attempts", "process", "last sign"):
        table.add_column(name, justify="left" if name in ("state", "process") else "right", no_wrap=True)
    table.add_column("reason", overflow="fold")
    now = time.time()
    for trial in results.trials:
        table.add_row(*_row(trial, now), Text(trial.user_attrs.get("reason", "")))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(f"{results.plan.title}: nala fit --task {results.plan.task}", highlight=False, markup=False)
    console.print(headline(results), highlight=False, markup=False)
    console.print(table)
    if any(word(trial) == "interrupted" for trial in results.trials):
        command = f"nala sweep --resume {quoted(folder)}"
        console.print(f"go on with what was interrupted: {command}", soft_wrap=True, highlight=False)


def _row(trial: FrozenTrial, now: float) -> list[str]:
    attempts, owner = trial.user_attrs.get("attempts", []), trial.user_attrs.get("owner", {})
    is_running = trial.state == TrialState.RUNNING
    beat = trial.user_attrs.get("heartbeat") if is_running else None
    return [
        str(trial.number),
        word(trial),
        "" if trial.state == TrialState.FAIL else number(last_value(trial)),
        str(max(trial.intermediate_values)) if trial.intermediate_values else "",
        duration(_taken(trial, now)) if attempts else "",
        str(len(attempts)) if attempts else "",
        f"{owner.get('host', '?')}:{owner.get('pid', '?')}" if is_running and owner else "",
        "" if beat is None else f"{duration(max(0.0, now - beat))} ago",
    ]


def _taken(trial: FrozenTrial, now: float) -> float:
    """Of an interrupted trial until its last sign of life."""
    return elapsed(trial, trial.user_attrs.get("heartbeat", now) if word(trial) == "interrupted" else now)
