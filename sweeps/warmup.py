"""How long the warm-up of a trial's learning rate can be: until then a sweep prunes nothing.

A trial with a long warm-up is behind the others until its warm-up has ended, however good it becomes. So no trial is
compared with others before the longest warm-up of the space has ended, whatever its own is.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from nala_platform import yaml_files

from .dimension import Categorical, Dimension, Number
from .space import Space

# What schedules call it: ours, and those of others that a study may name.
_NAME = re.compile(
    r"(?:n_|num_)?warm_?up(?P<unit>_(?:steps|iters|iterations|updates|epochs|ratio|fraction|frac|share|pct))?|pct_start"
)


class Warmup(NamedTuple):
    """The longest warm-up of a space, in each of the units in which a schedule can be told one.

    Attributes:
        steps: optimizer steps.
        share: of the steps of the run.
        epochs: of the run.
    """

    steps: float = 0.0
    share: float = 0.0
    epochs: float = 0.0

    def end(self, said: Mapping[str, Any]) -> float | None:
        """The optimizer step with which the warm-up ends in a run of this length; None: its length is not known.

        Args:
            said: a report of the run (`nala_platform.callbacks.reporter`), with ``total_steps``, ``steps_per_epoch``
                and ``warmup_steps``, the run's own warm-up, which may be fixed rather than searched.
        """
        ends = [self.steps, float(said.get("warmup_steps", 0))]
        for length, unit in ((self.share, "total_steps"), (self.epochs, "steps_per_epoch")):
            if length > 0:
                if unit not in said:
                    return None
                ends.append(math.ceil(length * said[unit] - 1e-6))
        return max(ends)

    def describe(self) -> str:
        """In words; empty if the space has none."""
        parts = [
            f"{100 * self.share:g} % of the run" if self.share else "",
            f"{self.steps:g} steps" if self.steps else "",
            f"{self.epochs:g} epochs" if self.epochs else "",
        ]
        return " or ".join(filter(None, parts))


def longest_warmup(space: Space) -> Warmup:
    """The longest warm-up that a trial of ``space`` can have, by its dimensions, conditional or not.

    Examples:
        >>> longest_warmup(Space({"model.schedule.warmup": {"float": {"low": 0.0, "high": 0.4}}}))
        Warmup(steps=0.0, share=0.4, epochs=0.0)
    """
    found = [_read(name, value) for each in space.dimensions for name, value in _named(each)]
    return Warmup(*(max(lengths) for lengths in zip(Warmup(), *found, strict=True)))


def _named(dimension: Dimension) -> Iterator[tuple[str, Any]]:
    """Each value of the dimension, and of mappings among its values each entry, with its name."""
    values: Iterable[Any] = ()
    if isinstance(dimension, Number):
        values = (dimension.low, dimension.high)
    elif isinstance(dimension, Categorical):
        values = dimension.choices
    for value in values:
        yield from _entries(dimension.path.rpartition(".")[2], value)


def _entries(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, str) and ("{" in value or _NAME.fullmatch(name)):
        try:
            value = yaml_files.load(value)  # as nala fit reads a word
        except yaml.YAMLError:
            return
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _entries(str(key), entry)
    elif isinstance(value, list):
        for entry in value:
            if isinstance(entry, Mapping):
                yield from _entries(name, entry)
    else:
        yield name, value


def _read(name: str, value: Any) -> Warmup:
    """One value: an int counts steps, a float below 1 is a share, unless the name says otherwise."""
    match = _NAME.fullmatch(name)
    if match is None or isinstance(value, bool) or not isinstance(value, int | float):
        return Warmup()
    if match["unit"] == "_epochs":
        return Warmup(epochs=float(value))
    return Warmup(share=value) if isinstance(value, float) and value < 1 else Warmup(steps=float(value))
