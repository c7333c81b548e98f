"""Errors that a library raises about a configured value, as a line that names the key.

Lightning, torch, timm, the loggers and others check what they are given themselves, with exceptions of many types, in
their constructors or when a run begins. The traceback tells such an error from a bug: it leads from the configured
class or function through the library's own code alone. Where code of ours or of the user's own lies in between, or
raises by itself, it is a bug, and its traceback is shown.
"""

import inspect
import linecache
import pkgutil
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any, NamedTuple, get_args, get_type_hints

from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from torch.optim.lr_scheduler import LRScheduler

from nala_platform.errors import UserError

_OURS = "nala_platform"
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_LENGTH = 400  # characters of a library's message, at most


class Component(NamedTuple):
    """A configured class or function.

    Attributes:
        key: its dotted key, such as ``model.optimizer``.
        target: itself.
        values: what it is given, by name, as configured.
    """

    key: str
    target: Callable[..., Any]
    values: Mapping[str, Any]


class _Step(NamedTuple):
    """One frame of a traceback and the line that runs in it."""

    frame: FrameType
    line: int

    @property
    def module(self) -> str:
        return self.frame.f_globals.get("__name__", "")

    @property
    def is_ours(self) -> bool:
        return self.module.partition(".")[0] == _OURS

    @property
    def is_library(self) -> bool:
        name = self.frame.f_code.co_filename  # generated code has none
        return not self.is_ours and (name.startswith((*_LIBRARIES, "<")) or "site-packages" in name)


def components(config: Namespace) -> list[Component]:
    """Every class and function that a configuration names, and the trainer."""
    found = [Component("trainer", Trainer, config.trainer.as_dict())] if "trainer" in config else []
    for key in ("trainer", "model", "data"):
        found += _below(key, config.get(key))
    return found


def _below(key: str, value: Any) -> Iterator[Component]:
    if isinstance(value, list):
        for entry in value:
            yield from _below(key, entry)
    if not isinstance(value, Namespace):
        return
    if isinstance(path := value.get("class_path"), str):
        given = value.get("init_args") or Namespace()
        yield Component(key, pkgutil.resolve_name(path), {**vars(given), **(value.get("dict_kwargs") or {})})
        value = given
    for name, entry in vars(value).items():
        yield from _below(f"{key}.{name}", entry)


def refuse_null(known: list[Component]) -> None:
    """Refuse ``null`` where a class or function takes none: the parser lets it pass below a class path.

    Raises:
        UserError: names the key and what it takes.
    """
    for component in known:
        hints = _hints(component.target)
        for name, value in component.values.items():
            hint = hints.get(name)
            if value is not None or hint is None or hint is Any or type(None) in (hint, *get_args(hint)):
                continue
            if (default := _default(component.target, name)) is None:
                continue
            fix = "give one" if default is inspect.Parameter.empty else f"leave the key away for its default {default}"
            raise UserError(f"{component.key}.{name} is null: it must be {getattr(hint, '__name__', hint)}; {fix}")


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(target.__init__ if isinstance(target, type) else target)
    except (AttributeError, NameError, TypeError):  # names that are imported for type checkers alone
        return {}


def explain_setting(error: BaseException, known: list[Component]) -> str | None:
    """The line for an error that a library raised about a configured value; None: it is a bug.

    Args:
        error: as caught, with its traceback.
        known: the configured `components`.
    """
    for cause in chain(error):
        if (found := _blamed(cause, known)) is not None:
            return _describe(cause, *found)
    if isinstance(error, MisconfigurationException):  # Lightning's own word for a user's mistake
        return _said(error)
    return None


def chain(error: BaseException) -> list[BaseException]:
    """The error and what it was raised from, the first cause first; jsonargparse wraps what a constructor raises."""
    found = [error]
    while (cause := found[-1].__cause__ or _wrapped(found[-1])) is not None:
        found.append(cause)
    return found[::-1]


def _wrapped(error: BaseException) -> BaseException | None:
    steps = _steps(error.__traceback__)
    is_parser = bool(steps) and steps[-1].module.partition(".")[0] == "jsonargparse"
    return error.__context__ if is_parser else None


def _steps(traceback: TracebackType | None) -> list[_Step]:
    found = []
    while traceback is not None:
        found.append(_Step(traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found


def _blamed(error: BaseException, known: list[Component]) -> tuple[Component, list[_Step]] | None:
    """The innermost component whose values the error is about, and the steps from it to the error."""
    steps = _steps(error.__traceback__)
    for place in reversed(range(len(steps))):
        for component in known:
            if not _runs_in(component, steps[place].frame):
                continue
            inner = steps[place:]
            return (component, inner) if _is_about_values(component, error, inner) else None
    return None


def _runs_in(component: Component, frame: FrameType) -> bool:
    if not isinstance(component.target, type):
        return frame.f_code is getattr(inspect.unwrap(component.target), "__code__", None)
    names = frame.f_code.co_varnames
    return bool(names) and type(frame.f_locals.get(names[0])) is component.target


def _is_about_values(component: Component, error: BaseException, inner: list[_Step]) -> bool:
    is_built = inner[0].frame.f_code.co_name == "__init__" or not isinstance(component.target, type)
    if inner[0].is_ours:  # ours checks its values itself; what it hands on to a library, that checks
        return is_built and inner[-1].is_library and all(step.is_ours or step.is_library for step in inner)
    if not all(step.is_library for step in inner):
        return False
    if is_built or isinstance(error, MisconfigurationException | ImportError):
        return True
    if isinstance(component.target, type) and issubclass(component.target, LRScheduler):
        return True  # arithmetic on its settings, and nothing else
    if isinstance(error, OSError) and error.filename is not None and component.target is not Trainer:
        return True  # a place of a logger's or callback's own
    # While a run goes on, libraries fail for many reasons. A check of a setting is a `raise` in the library of the
    # component.
    return _is_raised(inner[-1]) and _home(inner[-1].module) == _home(component.target.__module__ or "")


def _is_raised(step: _Step) -> bool:
    return linecache.getline(step.frame.f_code.co_filename, step.line).lstrip().startswith("raise ")


def _home(module: str) -> str:
    """The library that a module is of; torch is many."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "torch" else 1])


def _describe(error: BaseException, component: Component, inner: list[_Step]) -> str:
    said, name = _said(error), getattr(component.target, "__name__", str(component.target))
    if isinstance(error, ModuleNotFoundError) and "pip install" not in said and error.name:
        said = f"{said}: pip install {error.name.partition('.')[0]}"
    names = _meant(error, component, inner)
    if not names:
        changed = [each for each, value in component.values.items() if _default(component.target, each) != value]
        keys = ", ".join(f"{component.key}.{each}" for each in changed if component.values[each] is not None)
        return f"{component.key}: {name}: {said}" + (f" (set here: {keys})" if keys else "")
    given = " and ".join(f"{component.key}.{each} is {component.values[each]!r}" for each in names)
    default = _default(component.target, names[0])
    is_known = default not in (inspect.Parameter.empty, None) and default != component.values[names[0]]
    return f"{given}: {name}: {said}" + (f" (its default is {default!r})" if is_known and len(names) == 1 else "")


def _said(error: BaseException) -> str:
    """What the library says, on one line, without advice on Python code that a command line has not."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = re.sub(r"Find a complete list.*", "", text).strip()
    if isinstance(error, TypeError | KeyError | AttributeError | ArithmeticError | IndexError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]} …"


def _meant(error: BaseException, component: Component, inner: list[_Step]) -> list[str]:
    """The parameters that the error is about: those whose names or values stand in the message or in the check."""
    message = str(error)
    words = set(re.findall(r"\w+", message))
    # the check itself says most, where the component makes it
    code = (
        set(re.findall(r"\w+", "".join(_check(inner[0]))))
        if len(inner) == 1 and inner[0].frame.f_code.co_name == "__init__"
        else set()
    )
    scores = {}
    for name, value in component.values.items():
        is_told = value is not None and not isinstance(value, bool) and str(value) not in ("", "0", "1")
        is_default = _default(component.target, name) == value
        scores[name] = 4 * (name in words) + 2 * (is_told and _stands_in(str(value), message)) + 2 * (name in code)
        scores[name] += bool(scores[name]) * (not is_default)
    best = max(scores.values(), default=0)
    return [name for name, score in scores.items() if score == best][:3] if best else []


def _stands_in(value: str, message: str) -> bool:
    """

    Examples:
        >>> _stands_in("-1.0", "Invalid learning rate: -1.0"), _stands_in("xla", "'torch_xla>=1' not met")
        (True, True)
        >>> _stands_in("transformer-engine", "Requirement 'transformer_engine>=0.11.0' not met")
        True
        >>> _stands_in("2", "expects p in [0, 1], but got p=1.25")
        False
    """
    value, message = value.replace("_", "-"), message.replace("_", "-")
    if value.isalpha():
        return value in re.findall(r"[^\W_]+", message)
    return re.search(rf"(?<![\w.-]){re.escape(value)}(?![\w.]*\w)", message) is not None


def _check(step: _Step) -> Iterator[str]:
    """The line that runs, and of a ``raise`` the condition above it."""
    path, line = step.frame.f_code.co_filename, step.line
    text = linecache.getline(path, line)
    yield text
    for above in range(line - 1, max(0, line - 4), -1):
        if "raise" not in text:
            return
        yield linecache.getline(path, above)
        if re.match(r"\s*(el)?if ", linecache.getline(path, above)):
            return


def _default(target: Callable[..., Any], name: str) -> Any:
    try:
        parameter = inspect.signature(target).parameters.get(name)
    except (TypeError, ValueError):  # of some built-in classes Python knows no signature
        return inspect.Parameter.empty
    return inspect.Parameter.empty if parameter is None else parameter.default
