"""Samplers and pruners by class path, as a study file names them."""

import importlib
import inspect
import warnings
from typing import Any, NamedTuple, TypeVar

from optuna.pruners import BasePruner

from nala_platform.errors import UserError, near

Made = TypeVar("Made")


class Part(NamedTuple):
    """A class and what it is built with. A value with a ``class_path`` of its own is built first."""

    class_path: str
    init_args: dict[str, Any]

    @property
    def name(self) -> str:
        """Of the class, without its module."""
        return self.class_path.rpartition(".")[2]


def read_part(entry: Any, package: str, where: str) -> Part:
    """``TPESampler``, ``my.module.Sampler`` or ``{class_path: …, init_args: {…}}``.

    Args:
        entry: what stands in the study file.
        package: in which a name without a module is looked up, such as ``optuna.samplers``.
        where: begins the message when it is wrong.

    Raises:
        UserError: neither form.

    Examples:
        >>> read_part("GridSampler", "optuna.samplers", "my.yaml: sampler").class_path
        'optuna.samplers.GridSampler'
    """
    given = {"class_path": entry} if isinstance(entry, str) else entry
    if not isinstance(given, dict) or not isinstance(given.get("class_path"), str) or not given["class_path"]:
        raise UserError(f"{where} needs a class path, such as {package}.…, and init_args: beside it if it takes any")
    if unknown := sorted(given.keys() - {"class_path", "init_args"}):
        raise UserError(f"{where} has no {unknown[0]!r}: options stand below init_args:")
    options = given.get("init_args") or {}
    if not isinstance(options, dict):
        raise UserError(f"{where}.init_args needs keys and values")
    path = given["class_path"]
    return Part(path if "." in path else f"{package}.{path}", dict(options))


def make_part(part: Part, base: type[Made], where: str, **ours: Any) -> Made:
    """Build it.

    Args:
        part: class and options.
        base: what it must be a kind of.
        where: begins the message when it cannot be built.
        ours: options that the sweep sets itself, each where the class takes it; a study may not.

    Raises:
        UserError: no such class, an option that it lacks, or a value that it refuses.
    """
    made = _find(part.class_path, base, where)
    taken = inspect.signature(made).parameters
    if clash := sorted(part.init_args.keys() & ours.keys()):
        raise UserError(f"{where}.init_args.{clash[0]} is the sweep's own: leave it away (seed: stands at the top)")
    for name in part.init_args:
        if name not in taken:
            raise UserError(f"{where}: {part.name} has no option {name!r}{near(name, taken)} It has {', '.join(taken)}")
    package = "optuna.pruners" if issubclass(base, BasePruner) else "optuna.samplers"
    options = {name: _value(value, package, base, where) for name, value in part.init_args.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna calls much of what is in use experimental
            return made(**options, **{name: value for name, value in ours.items() if name in taken})
    except ImportError as error:
        raise UserError(f"{where}: {part.name} needs a package that is not installed: {error}") from error
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: {part.name} cannot be built: {' '.join(str(error).split())}") from error


def _value(value: Any, package: str, base: type[Any], where: str) -> Any:
    is_part = isinstance(value, dict) and "class_path" in value
    return make_part(read_part(value, package, where), base, where) if is_part else value


def _find(class_path: str, base: type[Made], where: str) -> type[Made]:
    module_name, _, name = class_path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"{where}: no class {class_path!r}: {error}") from error
    found = getattr(module, name, None)
    if isinstance(found, type) and issubclass(found, base):
        return found
    kinds = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)]
    raise UserError(f"{where}: {class_path} is no {base.__name__}{near(name, kinds)}")
