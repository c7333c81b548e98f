"""What a sweep varies: one setting of a run, and how its value is drawn. Free of torch, of files and of the study."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from optuna.trial import BaseTrial

from nala_platform.errors import UserError, near

Scalar = None | bool | int | float | str


@dataclass(frozen=True)
class Dimension(ABC):
    """One setting.

    Args:
        path: the key that it sets, such as ``model.optimizer.lr``.
        when: other settings and the values of theirs with which this one counts; empty: it always does.
    """

    path: str
    when: Mapping[str, tuple[Any, ...]]

    @property
    @abstractmethod
    def parameters(self) -> tuple[str, ...]:
        """The names that Optuna knows it by."""

    @abstractmethod
    def suggest(self, trial: BaseTrial) -> Any:
        """The setting's value in a trial."""

    @abstractmethod
    def extremes(self) -> list[Any]:
        """Few values that stand for all: what a config takes of these, it takes of all."""

    @abstractmethod
    def grid(self) -> dict[str, list[Scalar]]:
        """Every value of each of `parameters`.

        Raises:
            UserError: there is no end to them.
        """

    @abstractmethod
    def canonical(self) -> dict[str, Any]:
        """What a study file would say, each option spelled out."""


@dataclass(frozen=True)
class AlphaRange(Dimension):
    """An ordered pair ``[l, h]`` with ``low <= l``, ``h <= high``, ``h - l >= min_width``, from two numbers in a box.

    ``<path>.low`` is l, uniform in ``[low, high - min_width]``; ``<path>.fill`` in [0, 1] is the share taken of the
    room that is left: ``h = l + min_width + fill * (high - l - min_width)``. So each pair is reached, and none is
    thrown away.
    """

    low: float
    high: float
    min_width: float

    @property
    def parameters(self) -> tuple[str, ...]:
        """See the class."""
        return f"{self.path}.low", f"{self.path}.fill"

    def suggest(self, trial: BaseTrial) -> list[float]:
        """``[l, h]``."""
        low, fill = self.parameters
        start = trial.suggest_float(low, self.low, self.high - self.min_width)
        return self.pair(start, trial.suggest_float(fill, 0.0, 1.0))

    def pair(self, start: float, fill: float) -> list[float]:
        """``[l, h]`` of the two numbers.

        Examples:
            >>> AlphaRange("alpha", {}, 0.5, 5.0, 0.25).pair(1.75, 0.5)
            [1.75, 3.5]
        """
        room = self.high - start - self.min_width
        return [start, min(self.high, start + self.min_width + fill * room)]  # min: rounding may pass the bound

    def extremes(self) -> list[list[float]]:
        """The widest, and the lowest of the narrowest."""
        return [self.pair(self.low, 1.0), self.pair(self.low, 0.0)]

    def grid(self) -> dict[str, list[Scalar]]:
        """There is none."""
        raise UserError(f"{self.path}: a range has no grid: list the pairs, as categorical: [[0.5, 2.0], [1.5, 4.5]]")

    def canonical(self) -> dict[str, Any]:
        """See `Dimension`."""
        return {"range": {"low": self.low, "high": self.high, "min_width": self.min_width}}


@dataclass(frozen=True)
class Number(Dimension):
    """A float or an int in ``[low, high]``: uniform, or uniform in its logarithm, or in steps from ``low`` on."""

    is_int: bool
    low: float
    high: float
    log: bool
    step: float | None

    @property
    def parameters(self) -> tuple[str, ...]:
        """Its path."""
        return (self.path,)

    def suggest(self, trial: BaseTrial) -> float | int:
        """The number."""
        if self.is_int:
            return trial.suggest_int(self.path, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(self.path, self.low, self.high, step=self.step, log=self.log)

    def extremes(self) -> list[float | int]:
        """Its ends."""
        return [self.low] if self.low == self.high else [self.low, self.high]

    def grid(self) -> dict[str, list[Scalar]]:
        """Each step."""
        if self.log or (self.step is None and not self.is_int):
            raise UserError(f"{self.path}: a grid needs a step, or the values listed as categorical: [...]")
        return {self.path: list(_steps(self.low, self.high, self.step or 1))}

    def canonical(self) -> dict[str, Any]:
        """See `Dimension`."""
        options = {"low": self.low, "high": self.high, "log": self.log, "step": self.step}
        return {"int" if self.is_int else "float": options}


@dataclass(frozen=True)
class Categorical(Dimension):
    """One of some values. Lists and mappings among them stand in the study as JSON: Optuna keeps scalars alone."""

    choices: tuple[Any, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Its path."""
        return (self.path,)

    @property
    def _stored(self) -> list[Scalar]:
        return [json.dumps(choice) if isinstance(choice, list | dict) else choice for choice in self.choices]

    def suggest(self, trial: BaseTrial) -> Any:
        """One of ``choices``."""
        chosen = trial.suggest_categorical(self.path, self._stored)
        same = [index for index, stored in enumerate(self._stored) if stored == chosen and type(stored) is type(chosen)]
        return self.choices[same[0]]

    def extremes(self) -> list[Any]:
        """All of them; of numbers alone, which differ in nothing but size, the first and the last."""
        is_numbers = all(type(choice) is type(self.choices[0]) in (int, float) for choice in self.choices)
        return [self.choices[0], self.choices[-1]] if is_numbers and len(self.choices) > 2 else list(self.choices)

    def grid(self) -> dict[str, list[Scalar]]:
        """All of them."""
        return {self.path: self._stored}

    def canonical(self) -> dict[str, Any]:
        """See `Dimension`."""
        return {"categorical": list(self.choices)}


_OPTIONS = {
    "range": ("low", "high", "min_width"),
    "float": ("low", "high", "log", "step"),
    "int": ("low", "high", "log", "step"),
}


def read_dimension(path: str, entry: Any, where: str) -> Dimension:
    """The dimension that one line of a study file's ``space`` describes.

    Args:
        path: the line's key.
        entry: what stands behind it, such as ``{"float": {"low": 0.1, "high": 1.0}, "when": {...}}``.
        where: begins the message when the line is wrong.

    Raises:
        UserError: another kind, an option missing or unknown, bounds out of order.
    """
    kinds = (*_OPTIONS, "categorical")
    given = list(entry) if isinstance(entry, dict) else []
    found = [key for key in given if key != "when"]
    if len(found) != 1 or found[0] not in kinds:
        said = repr(found[0]) + near(str(found[0]), kinds) if len(found) == 1 else "that is no such line."
        raise UserError(f"{where}: {said} Write one of {', '.join(kinds)}, such as {{float: {{low: 0.1, high: 1.0}}}}")
    kind, when = found[0], _conditions(entry.get("when", {}), where)
    if kind == "categorical":
        return Categorical(path, when, _choices(entry[kind], where))
    options = _read_options(entry[kind], kind, where)
    low, high = options["low"], options["high"]
    if kind == "range":
        width = options["min_width"]
        if not low < high or not 0 <= width <= high - low:
            raise UserError(f"{where}: a range needs low < high and min_width in [0, {high - low:g}], got {width:g}")
        return AlphaRange(path, when, low, high, width)
    if low > high or (options["log"] and low <= 0) or (options["log"] and options["step"] is not None):
        raise UserError(f"{where}: needs low <= high, and with log: true also low > 0 and no step")
    if options["step"] is not None:
        high = _steps(low, high, options["step"])[-1]
    return Number(path, when, kind == "int", low, high, options["log"], options["step"])


def _read_options(given: Any, kind: str, where: str) -> dict[str, Any]:
    known = _OPTIONS[kind]
    if not isinstance(given, dict):
        raise UserError(f"{where}: {kind} needs its bounds: {{low: …, high: …}}")
    for key in given:
        if key not in known:
            raise UserError(f"{where}: {kind} has no {key!r}{near(str(key), known)} It has {', '.join(known)}")
    options: dict[str, Any] = {"min_width": 0.0, "log": False, "step": None, **given}
    for key in ("low", "high", "min_width", "step"):
        if key in options and (key != "step" or options[key] is not None):
            options[key] = number(options[key], f"{where}: {key}", whole=kind == "int" and key != "min_width")
    if missing := [key for key in ("low", "high") if key not in options]:
        raise UserError(f"{where}: {kind} lacks {' and '.join(missing)}")
    if not isinstance(options["log"], bool):
        raise UserError(f"{where}: log is true or false, got {options['log']!r}")
    if options["step"] is not None and options["step"] <= 0:
        raise UserError(f"{where}: step must be above 0, got {options['step']}")
    return options


def _steps(low: float, high: float, step: float) -> list[float | int]:
    """From ``low`` up to ``high`` at most, as a person counts: in binary, 0.3 is less than three times 0.1.

    Examples:
        >>> _steps(0.1, 0.35, 0.1)
        [0.1, 0.2, 0.3]
    """
    first, last, by = (Decimal(str(value)) for value in (low, high, step))
    return [type(low)(first + index * by) for index in range(int((last - first) / by) + 1)]


def number(value: Any, where: str, whole: bool = False) -> float | int:
    """``value`` as a float, or as an int; YAML reads ``1e-3`` as text, and a number is meant.

    Examples:
        >>> number("1e-3", "low"), number(3, "low"), number("3", "low", whole=True)
        (0.001, 3.0, 3)
    """
    try:
        read = float(value) if not isinstance(value, bool) and isinstance(value, int | float | str) else math.nan
    except ValueError:
        read = math.nan
    if not math.isfinite(read) or (whole and read != int(read)):
        raise UserError(f"{where} needs a {'whole ' if whole else ''}number, got {value!r}")
    return int(read) if whole else read


def _choices(given: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(given, list | tuple) or not given:
        raise UserError(f"{where}: categorical needs a list of values, such as [tanh, sigmoid]")
    try:
        texts = [json.dumps(choice) for choice in given]
    except TypeError as error:
        raise UserError(f"{where}: categorical takes texts, numbers, lists and mappings: quote a date") from error
    if doubles := sorted({text for text in texts if texts.count(text) > 1}):
        raise UserError(f"{where}: categorical lists {', '.join(doubles)} more than once")
    return tuple(given)


def _conditions(given: Any, where: str) -> dict[str, tuple[Any, ...]]:
    if not isinstance(given, dict):
        raise UserError(f"{where}: when needs another key and its value, such as {{model.network.attention: nala}}")
    return {str(key).replace(".init_args", ""): _listed(value) for key, value in given.items()}


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)
