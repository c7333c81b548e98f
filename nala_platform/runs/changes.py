"""What was typed against what a stopped run was made with: applied, restored or refused, key by key. No torch."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nala_platform.errors import UserError
from nala_platform.paths import absolute

APPLIED, RESTORED, REFUSED = "applied", "restored", "refused"
_OPTIMIZER, _SCHEDULE = "model.init_args.optimizer", "model.init_args.schedule"
RATE = f"{_OPTIMIZER}.init_args.lr"
# Where a run lies and how it is resumed is no part of what it is.
_ABOUT_THE_CALL = ("resume", "reset", "folder", "ckpt_path", "weights_only", "name", "runs_dir", "print_config")
_IDENTITY = ("task", "model.class_path", "model.init_args.network")
_ORDER = ("data.class_path", "data.init_args.seed", "data.init_args.exclude", "seed_everything")


class Change(NamedTuple):
    """One key whose value differs: as it was stored, as it is wanted, what becomes of it, and how to have it."""

    key: str
    stored: Any
    wanted: Any
    verdict: str
    mend: str


def compare(stored: Mapping[str, Any], wanted: Mapping[str, Any], resets: tuple[str, ...]) -> list[Change]:
    """Every leaf that differs between two configurations, in order of their keys.

    The rule: what is typed is applied. But rate, options and schedule of the optimizer are in the checkpoint, and are
    restored unless a reset says otherwise; and what makes the checkpoint another one's is refused: the task, the
    network, the averaging being on or off, and, unless the data is reset, the order of the samples.

    Args:
        stored: the run's ``config.yaml``.
        wanted: the configuration with what was typed.
        resets: see `nala_platform.callbacks.resume.ExactResume`.

    Examples:
        >>> [tuple(c) for c in compare({"trainer": {"max_epochs": 2}}, {"trainer": {"max_epochs": 3}}, ())]
        [('trainer.max_epochs', 2, 3, 'applied', '')]
    """
    old, new = dict(_leaves(stored)), dict(_leaves(wanted))
    changes = []
    for key in sorted(old.keys() | new.keys()):
        if key.split(".")[0] in _ABOUT_THE_CALL or _same(old.get(key), new.get(key)):
            continue
        verdict, mend = _verdict(key, old.get(key), new.get(key), resets)
        if key not in old and verdict == REFUSED:  # the run is from before there was such a key
            verdict, mend = APPLIED, ""
        changes.append(Change(key, old.get(key), new.get(key), verdict, mend))
    return changes


def appended_again(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, list[int]]:
    """Which entries of lists were appended although the run has them: whoever starts a run with the same words each
    time, ``--trainer.callbacks+ X`` among them, means one X.

    Returns:
        The places of the repeated entries, by key of the list.

    Examples:
        >>> appended_again({"trainer": {"callbacks": ["a", "b"]}}, {"trainer": {"callbacks": ["a", "b", "c", "b"]}})
        {'trainer.callbacks': [3]}
    """
    old, found = dict(_leaves(stored)), {}
    for key, new in _leaves(wanted):
        had = old.get(key)
        if isinstance(had, list) and had and isinstance(new, list) and new[: len(had)] == had:
            found[key] = [place for place in range(len(had), len(new)) if new[place] in had]
    return {key: places for key, places in found.items() if places}


def _same(stored: Any, wanted: Any) -> bool:
    """Whether two values are equal, or two ways to write one path: an older run kept some as they were typed."""
    if stored == wanted:
        return True
    is_path = isinstance(stored, str) and isinstance(wanted, str) and stored and wanted.startswith("/")
    return bool(is_path and absolute(stored) == absolute(wanted))


def _verdict(key: str, stored: Any, wanted: Any, resets: tuple[str, ...]) -> tuple[str, str]:
    if _within(key, _IDENTITY) or (key == "ema.decay" and None in (stored, wanted)):
        return REFUSED, "begin a new run for it"
    if _within(key, _ORDER) and "data" not in resets:
        return REFUSED, "--reset data begins the epoch again with it"
    if _within(key, (_OPTIMIZER,)) and "optimizer" not in resets and not (key == RATE and "lr" in resets):
        return RESTORED, f"--reset {'lr' if key == RATE else 'optimizer'} applies it"
    if _within(key, (_SCHEDULE,)) and "scheduler" not in resets:
        return RESTORED, "--reset scheduler applies it"
    return APPLIED, ""


def refuse(changes: list[Change]) -> None:
    """Raise a `UserError` that names what cannot be changed, if anything cannot."""
    refused = [change for change in changes if change.verdict == REFUSED]
    if refused:
        listed = "; ".join(
            f"{c.key} is {c.stored!r} in the run, {c.wanted!r} was asked for ({c.mend})" for c in refused
        )
        raise UserError(f"cannot resume with another {listed}")


def restored_subtrees(changes: list[Change]) -> set[str]:
    """The keys of the subtrees that are taken from the stored configuration as a whole."""
    keys = [change.key for change in changes if change.verdict == RESTORED]
    return {root for root in (_OPTIMIZER, _SCHEDULE) if any(_within(key, (root,)) for key in keys)}


def keeps_rate(changes: list[Change]) -> bool:
    """Whether a new learning rate is applied although the optimizer's other options are restored."""
    return any(change.key == RATE and change.verdict == APPLIED for change in changes)


def _within(key: str, roots: tuple[str, ...]) -> bool:
    return any(key == root or key.startswith(f"{root}.") for root in roots)


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
