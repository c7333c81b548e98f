"""The space that a sweep searches: dimensions by the config path that each sets."""

import json
import re
from collections.abc import Mapping
from typing import Any

from optuna.trial import BaseTrial, FixedTrial

from nala_platform.errors import UserError, near

from .dimension import AlphaRange, Categorical, Dimension, Scalar, read_dimension

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
# Where and how a run is made.
_ABOUT_THE_CALL = ("task", "resume", "reset", "folder", "ckpt_path", "name", "runs_dir", "config", "print_config")


class Space:
    """Dimensions, each with the key that it sets, and conditions among them.

    A study file states one a line::

        model.network.attention: {categorical: [nala, softmax]}
        model.network.alpha_gate: {categorical: [tanh, sigmoid], when: {model.network.attention: nala}}
        model.network.alpha_range: {range: {low: 0.5, high: 5.0, min_width: 0.25}}
        model.optimizer.lr: {float: {low: 1e-4, high: 1e-2, log: true}}
        model.schedule.warmup: {int: {low: 0, high: 500, step: 50}}

    Args:
        lines: what stands under ``space:``.
        where: the file, for messages.

    Raises:
        UserError: a line is wrong, or a condition can never be met.
    """

    def __init__(self, lines: Any, where: str = "space") -> None:
        if not isinstance(lines, Mapping) or not lines:
            raise UserError(f"{where}: space needs lines, such as model.optimizer.lr: {{float: {{low: …, high: …}}}}")
        self._where = where
        read = {}
        for key, entry in lines.items():
            path = _path(key, f"{where}: space")
            if path in read:
                raise UserError(f"{where}: space has {path} more than once")
            read[path] = read_dimension(path, entry, f"{where}: space.{path}")
        _check_conditions(read, where)
        self.dimensions: tuple[Dimension, ...] = tuple(self._in_order(read))
        if len(set(self.parameters)) < len(self.parameters):
            raise UserError(f"{where}: space: the names .low and .fill under a range's key are its own")
        self.corners()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names that Optuna knows the space by; those of a range are ``<path>.low`` and ``<path>.fill``."""
        return tuple(name for dimension in self.dimensions for name in dimension.parameters)

    @property
    def paths(self) -> tuple[str, ...]:
        """The keys that it sets."""
        return tuple(dimension.path for dimension in self.dimensions)

    @property
    def ranges(self) -> tuple[AlphaRange, ...]:
        """Those dimensions that are ordered pairs."""
        return tuple(dimension for dimension in self.dimensions if isinstance(dimension, AlphaRange))

    @property
    def has_conditions(self) -> bool:
        """Whether some dimension does not always count."""
        return any(dimension.when for dimension in self.dimensions)

    def suggest(self, trial: BaseTrial) -> dict[str, Any]:
        """The values of a trial by path, of those dimensions that count in it."""
        values: dict[str, Any] = {}
        for dimension in self.dimensions:
            if _counts(dimension, values):
                values[dimension.path] = dimension.suggest(trial)
        return values

    def values(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """What `suggest` gave a trial that has these ``parameters``."""
        return self.suggest(FixedTrial(dict(parameters)))

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """What is typed to ``nala fit`` for ``values``; a key before those below it, as a class before its options.

        Examples:
            >>> Space({"a.b": {"categorical": [1]}, "a": {"categorical": ["x.Y"]}}).words({"a.b": 0.5, "a": "x.Y"})
            ['--a=x.Y', '--a.b=0.5']
        """
        ordered = sorted(values.items(), key=lambda item: item[0].count("."))
        return [f"--{path}={value if isinstance(value, str) else json.dumps(value)}" for path, value in ordered]

    def canonical(self) -> dict[str, Any]:
        """Plain values from which an equal space is built, every option spelled out."""
        written = {}
        for dimension in self.dimensions:
            when = {key: list(values) for key, values in dimension.when.items()}
            written[dimension.path] = dimension.canonical() | ({"when": when} if when else {})
        return written

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and not self.diff(other)

    __hash__ = None  # type: ignore[assignment]

    def diff(self, other: "Space") -> list[str]:
        """One line for each dimension that ``other`` lacks, adds or changes."""
        ours, theirs = self.canonical(), other.canonical()
        return [
            f"space.{path}: {_shown(ours.get(path))} in the sweep, {_shown(theirs.get(path))} was asked for"
            for path in sorted(ours.keys() | theirs.keys())
            if json.dumps(ours.get(path)) != json.dumps(theirs.get(path))
        ]

    def corners(self) -> list[dict[str, Any]]:
        """Few sets of values in which every dimension counts, with each of its extremes, at least once.

        Raises:
            UserError: a dimension can never count.
        """
        missing = {dimension.path: dimension.extremes() for dimension in self.dimensions}
        found: list[dict[str, Any]] = []
        while any(missing.values()):
            corner: dict[str, Any] = {}
            for dimension in self.dimensions:
                if _counts(dimension, corner):
                    corner[dimension.path] = self._next(dimension, missing)
            used = [path for path, value in corner.items() if value in missing[path]]
            if not used:
                first = next(path for path, values in missing.items() if values)
                raise UserError(f"{self._where}: space.{first} never counts: no trial can meet its when")
            for path in used:
                missing[path].remove(corner[path])
            found.append(corner)
        return found

    def _next(self, dimension: Dimension, missing: dict[str, list[Any]]) -> Any:
        """The value to look at next: a new one, or one that lets a dimension count that is not looked at yet."""
        if missing[dimension.path]:
            return missing[dimension.path][0]
        for other in self.dimensions:
            conditions = [one.when[dimension.path] for one in self._chain(other) if dimension.path in one.when]
            allowed = (
                [value for value in conditions[0] if all(value in rest for rest in conditions)] if conditions else []
            )
            if missing[other.path] and allowed:
                return allowed[0]
        return dimension.extremes()[0]

    def _chain(self, dimension: Dimension) -> list[Dimension]:
        """It, and all that must count for it to count."""
        above = [other for other in self.dimensions if other.path in dimension.when]
        return [dimension, *(link for other in above for link in self._chain(other))]

    def grid(self) -> dict[str, list[Scalar]]:
        """Every value of every parameter, for a grid.

        Raises:
            UserError: a dimension has no end of values, or a condition: its values would be tried where they do not
                count.
        """
        for dimension in self.dimensions:
            if dimension.when:
                raise UserError(f"{self._where}: space.{dimension.path}: a grid takes no when: use another sampler")
        return {name: values for dimension in self.dimensions for name, values in dimension.grid().items()}

    def _in_order(self, read: dict[str, Dimension]) -> list[Dimension]:
        """Each after those that its condition names."""
        ordered: dict[str, Dimension] = {}
        waiting = dict(read)
        while waiting:
            ready = [dimension for dimension in waiting.values() if dimension.when.keys() <= ordered.keys()]
            if not ready:
                raise UserError(f"{self._where}: space: {', '.join(waiting)} wait for each other in their when")
            for dimension in ready:
                ordered[dimension.path] = waiting.pop(dimension.path)
        return list(ordered.values())


def _counts(dimension: Dimension, values: Mapping[str, Any]) -> bool:
    return all(path in values and values[path] in wanted for path, wanted in dimension.when.items())


def _path(key: Any, where: str) -> str:
    """One spelling of a key: as a person types it."""
    if not isinstance(key, str) or not _PATH.fullmatch(key):
        raise UserError(f"{where}: {key!r} is no key: write it as nala fit takes it, without --: model.optimizer.lr")
    if key.split(".")[0] in _ABOUT_THE_CALL:
        raise UserError(f"{where}: {key} says where and how a run is made: a sweep sets it itself")
    return key.replace(".init_args", "")


def _check_conditions(read: dict[str, Dimension], where: str) -> None:
    for path, dimension in read.items():
        for key, wanted in dimension.when.items():
            place, other = f"{where}: space.{path}: when", read.get(key)
            if other is None:
                raise UserError(f"{place}: {key} is not in the space{near(key, read)}")
            if not isinstance(other, Categorical):
                raise UserError(f"{place}: {key} is not categorical: a condition names one of some values")
            for value in wanted:
                if value not in other.choices:
                    raise UserError(
                        f"{place}: {key} is never {value!r}: it is one of {', '.join(map(repr, other.choices))}"
                    )


def _shown(line: Any) -> str:
    return "nothing" if line is None else json.dumps(line, ensure_ascii=False).replace('"', "")
