"""What a sweep improves: a metric of the validation part, or what a run costs."""

from typing import Any, Literal, NamedTuple

from nala_platform import argv, yaml_files
from nala_platform.errors import UserError, near

COSTS = ("parameters", "seconds_per_step", "peak_memory_bytes", "gmacs")
"""Keys of a run's ``summary.json``; less is better."""
Direction = Literal["maximize", "minimize"]
_DIRECTIONS: dict[str, Direction] = {
    **{"max": "maximize", "maximize": "maximize"},
    **{"min": "minimize", "minimize": "minimize"},
}
_KEYS = ("metric", "direction", "value")


class Objective(NamedTuple):
    """One objective.

    The first decides which checkpoint of a trial is its ``best.ckpt``, by its metric and its direction; the scores on
    the test split are of that one. With ``value: last`` the trial is ranked by its last validation, after which
    ``last.ckpt`` was written, and ``best.ckpt`` is still that of the best one.

    Attributes:
        metric: ``val/…``, or one of `COSTS`.
        direction: maximize or minimize.
        value: of a metric: the best of all validations, or the last.
    """

    metric: str
    direction: Direction
    value: str


def read_objectives(entries: Any, task: str, overrides: tuple[str, ...], where: str) -> tuple[Objective, ...]:
    """The objectives that a study file lists; for none, what the task's best checkpoint is chosen by.

    Args:
        entries: names, or mappings with the keys of `Objective`.
        task: whose metric, and whose direction for it, is taken where none is said.
        overrides: that every trial is started with; they may name another metric for the checkpoint.
        where: begins the message when one is wrong.

    Raises:
        UserError: no metric that can be an objective, no direction for it, or more than one metric of the validation.
    """
    monitor, mode = checkpoint_choice(task, overrides)
    listed = entries if isinstance(entries, list | tuple) else [entries if entries is not None else monitor]
    known = {monitor: mode, "val/loss": "min", **dict.fromkeys(COSTS, "min")}
    read = tuple(_objective(entry, known, where) for entry in listed)
    if len({objective.metric for objective in read}) < len(read) or not read:
        raise UserError(f"{where} needs metrics, each once, such as [{monitor}, parameters]")
    if late := [objective.metric for objective in read[1:] if objective.metric.startswith("val/")]:
        raise UserError(f"{where}: {late[0]} must be the first, and the only one of its kind: the others are costs")
    return read


def checkpoint_words(objectives: tuple[Objective, ...], task: str, overrides: tuple[str, ...]) -> tuple[str, ...]:
    """What lets a trial keep the checkpoint that is best by the first objective; nothing where it does so anyway.

    So its test is of that checkpoint, and a metric that the task never logs ends a trial at its first validation. A
    first objective that is a cost leaves the task's own choice. A ``--checkpoint.monitor`` with another metric that was
    typed stands: the sweep then ranks by the objective, and ``best.ckpt`` is what was asked for. So does a typed
    ``--checkpoint.mode``, which `refuse_other_checkpoint` has looked at when the sweep began.
    """
    first, (monitor, mode) = objectives[0], checkpoint_choice(task, overrides)
    wanted = first.direction[:3]
    is_other = monitor != first.metric
    if not first.metric.startswith("val/") or (is_other and typed(overrides, "--checkpoint.monitor")):
        return ()
    monitor_word = (f"--checkpoint.monitor={first.metric}",) if is_other else ()
    is_mode_settled = typed(overrides, "--checkpoint.mode") or (mode == wanted and not is_other)
    return monitor_word if is_mode_settled else (*monitor_word, f"--checkpoint.mode={wanted}")


def refuse_other_checkpoint(
    objectives: tuple[Objective, ...], task: str, overrides: tuple[str, ...], searched: tuple[str, ...], where: str
) -> None:
    """Refuse a study whose trials would keep the checkpoint that is worst by the first objective.

    Args:
        objectives: of the study.
        task: of the study.
        overrides: that every trial is started with.
        searched: paths of the space.
        where: begins the message.

    Raises:
        UserError: the mode was typed and contradicts the objective, or the space varies it.
    """
    first, (monitor, mode) = objectives[0], checkpoint_choice(task, overrides)
    if decided := [path for path in searched if path in ("checkpoint.monitor", "checkpoint.mode")]:
        raise UserError(
            f"{where}: space.{decided[0]}: the first objective decides which checkpoint is best: take it out"
        )
    if first.metric == monitor and mode != first.direction[:3]:
        raise UserError(
            f"{where}: the objective is to {first.direction} {first.metric}, but --checkpoint.mode {mode} keeps the "
            f"worst checkpoint of each trial by it: leave --checkpoint.mode away, or make it {first.direction[:3]}"
        )


def _objective(entry: Any, known: dict[str, str], where: str) -> Objective:
    given = {"metric": entry} if isinstance(entry, str) else entry
    if not isinstance(given, dict) or not isinstance(given.get("metric"), str):
        raise UserError(f"{where}: {entry!r} is no objective: write {{metric: …, direction: maximize}}")
    for key in given:
        if key not in _KEYS:
            raise UserError(f"{where}: an objective has no {key!r}{near(str(key), _KEYS)} It has {', '.join(_KEYS)}")
    metric = given["metric"]
    if metric.startswith("test/"):
        raise UserError(f"{where}: {metric} would choose by the part that judges: use val/{metric.partition('/')[2]}")
    if not metric.startswith("val/") and metric not in COSTS:
        raise UserError(f"{where}: no metric {metric!r}{near(metric, known)} It is val/… or one of {', '.join(COSTS)}")
    if (direction := given.get("direction", known.get(metric))) is None:
        raise UserError(f"{where}: {metric} needs direction: maximize or minimize")
    value = given.get("value", "best")
    if str(direction) not in _DIRECTIONS or value not in ("best", "last"):
        raise UserError(f"{where}: {metric}: direction is maximize or minimize, value is best or last")
    return Objective(metric, _DIRECTIONS[str(direction)], value)


def checkpoint_choice(task: str, overrides: tuple[str, ...]) -> tuple[str, str]:
    """The metric and the mode that choose a trial's best checkpoint, by files and words in the order in which they
    count.
    """
    found = {"monitor": "val/loss", "mode": "min"}
    for path in (argv.CONF / f"{task}.yaml", *(argv.conf_file(name) for name in typed(overrides, "--config", "-c"))):
        settings = yaml_files.read_keys(path)
        found |= {key: value for key, value in (settings.get("checkpoint") or {}).items() if key in found}
    for key in found:
        found[key] = [found[key], *typed(overrides, f"--checkpoint.{key}")][-1]
    return found["monitor"], found["mode"]


def typed(words: tuple[str, ...], *flags: str) -> list[str]:
    """The values that ``words`` give one of ``flags``, as ``--flag value`` or ``--flag=value``.

    Examples:
        >>> typed(("--config", "a", "-c=b"), "--config", "-c")
        ['a', 'b']
    """
    found = []
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in flags and (equals or place + 1 < len(words)):
            found.append(value if equals else words[place + 1])
    return found
