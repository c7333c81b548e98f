"""Reads a command line and its files as Lightning does, but each value as the type of its key says.

jsonargparse reads whatever is typed as YAML before it looks at the type, and what is typed for a key below a class a
second time, from the text that Python makes of the first result. So ``--data.prompt "a: b"`` would be a mapping. Here a
key whose type is text or a path takes what is typed as it is; `null` is null where the key may be null. Strings in a
file have been read as YAML already, so their quotes decide. What of jsonargparse is private and used here stands in
this file alone; ``tests/test_parser.py`` holds it.
"""

import os
from functools import reduce
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

import yaml
from jsonargparse import Namespace, get_loader, set_dumper, set_loader
from jsonargparse._typehints import ActionTypeHint
from jsonargparse._util import NestedArg
from jsonargparse.typing import register_type
from lightning.pytorch.cli import LightningArgumentParser

from nala_platform import yaml_files
from nala_platform.errors import UserError
from nala_platform.paths import PathOrName, absolute, absolute_or_name, is_url, started_in
from nala_platform.runs.moved import renamed_values

_read_yaml = get_loader("yaml")
# the one place that every file goes through
set_loader("yaml", lambda text: renamed_values(_read_yaml(text)), exceptions=(yaml.YAMLError,))
set_dumper("yaml", yaml_files.dump)


class PathText(str):
    """Stands for ``str | Path`` as the type of a key: an absolute path, as plain text; a URL stays as it is."""


def _text(value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"expected a path, got {value!r}")
    return os.fspath(value)


def _path_text(value: Any) -> str:
    return text if is_url(text := _text(value)) else str(absolute(text))


for _kind, _made in (
    (PathText, _path_text),
    (PathOrName, lambda value: absolute_or_name(_text(value))),
    (Path, lambda value: absolute(_text(value))),
):
    register_type(_kind, _text, _made, type_check=lambda value, kind: False)  # what is read twice stays what it is
_TEXT = (str, Path, PathText, PathOrName)


class _Typed(str):
    """What was typed. jsonargparse reads plain strings alone as YAML."""


class Argument(ActionTypeHint):
    """A key with a type."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Take what was typed for this key or one below it."""
        parser, config, value, option = args
        return super().__call__(parser, config, _Typed(value) if type(value) is str else value, option)

    def _check_type(self, value: Any, append: bool = False, cfg: Any = None, mode: Any = None) -> Any:
        if isinstance(value, NestedArg):
            value = self._below(value)
        elif isinstance(value, str):
            value = self._read(value)
        found = super()._check_type(value, append=append, cfg=cfg, mode=mode)
        return str(found) if isinstance(found, _Typed) else found

    def _read(self, text: str) -> Any:
        """``text``, as `_Typed` where it is not to be read as YAML."""
        kinds = _kinds(self._typehint)
        if not any(kind in _TEXT for kind in kinds):
            return renamed_values(str(text))
        if not isinstance(text, _Typed):
            return _Typed(text)
        if text == "null" and NoneType in kinds:
            return None
        if all(kind in _TEXT or kind is NoneType or isinstance(kind, _Choice) for kind in kinds):
            return text
        try:
            return text if _read_yaml(str(text)) is None and text != "null" else str(text)
        except yaml.YAMLError:
            return text

    def _below(self, given: NestedArg) -> NestedArg:
        """What was typed for a key below this one: its own type reads it, where a class has one."""
        if given.key == "class_path":
            return NestedArg(given.key, renamed_values(str(given.val)))
        values = [get_args(kind)[1] for kind in _kinds(self._typehint) if get_origin(kind) is dict and get_args(kind)]
        is_text = all(value in _TEXT for value in values)
        is_mapping = given.key.split(".")[0] in ("init_args", "dict_kwargs") or not is_text
        return NestedArg(given.key, str(given.val)) if is_mapping and isinstance(given.val, str) else given


class _Choice(str):
    """A word among others that a key may be."""


def _kinds(hint: Any) -> list[Any]:
    """The types that ``hint`` allows, one by one.

    Examples:
        >>> _kinds(str | Literal["a"] | None)
        [<class 'str'>, 'a', <class 'NoneType'>]
    """
    if get_origin(hint) in (Union, UnionType):
        return [kind for part in get_args(hint) for kind in _kinds(part)]
    if get_origin(hint) is Literal:
        return [_Choice(word) if isinstance(word, str) else type(word) for word in get_args(hint)]
    return _kinds(get_args(hint)[0]) if get_origin(hint) is Annotated else [hint]


def _with_paths(hint: Any) -> Any:
    """``hint`` with the types that stand for a path in place of ``str | Path`` and ``str | PathOrName``; else itself.

    Examples:
        >>> _with_paths(dict[str, str | Path] | str | Path | None)
        dict[str, nala_platform.parser.PathText] | nala_platform.parser.PathText | None
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin not in (Union, UnionType, list, tuple, dict) or not parts:
        return hint
    new = [_with_paths(part) for part in parts]
    if PathOrName in new:
        new = [part for part in new if part is not str]
    if origin in (Union, UnionType) and str in new and any(part in (Path, os.PathLike) for part in new):
        new = [PathText if part is str else part for part in new if part not in (Path, os.PathLike)]
    if all(one is other for one, other in zip(new, parts, strict=False)) and len(new) == len(parts):
        return hint
    container: Any = origin
    return reduce(or_, new) if origin in (Union, UnionType) else container[tuple(new)]


class Parser(LightningArgumentParser):
    """Lets a parsing error out as an exception, instead of a usage text of several hundred lines."""

    def add_argument(self, *args: Any, **options: Any) -> Any:
        """As jsonargparse, which gives this method to its groups too; with an `Argument` for a typed key."""
        if "type" in options:
            options["type"] = _with_paths(options["type"])
        if isinstance(options.get("action"), ActionTypeHint):  # of a parameter of a class
            options["action"]._typehint = _with_paths(options["action"]._typehint)
        action = super().add_argument(*args, **options)
        if type(action) is ActionTypeHint:
            action.__class__ = Argument
        return action

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise; `nala_platform.parse_errors.explain` makes one line of it."""
        raise UserError(message) from ex

    def parse_args(self, *args: Any, **options: Any) -> Namespace:
        """Parse; relative paths begin at the present folder, also in a file that lies elsewhere."""
        with started_in(os.getcwd()):
            return super().parse_args(*args, **options)
