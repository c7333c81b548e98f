"""YAML as users write it: one loader for configurations, studies and values that are typed. Light: imports no torch.

Scalars mean what they mean to jsonargparse, which reads the same files: by YAML 1.1, which PyYAML follows, ``1e-3`` is
a text and ``2024-01-01`` a date.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from nala_platform.errors import UserError

_FLOAT = re.compile(
    r"""(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
    |\.[0-9_]+(?:[eE][-+][0-9]+)?
    |[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_REPLACED = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")


class _Loader(yaml.SafeLoader):  # not libyaml's: its errors name a later line
    """PyYAML's safe loader with the floats of YAML 1.2 and without dates."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Dumper(yaml.SafeDumper):
    """Quotes a text that `_Loader` would take for a number."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(_REPLACED[0], _FLOAT, list("-+0123456789."))


def dump(value: Any, width: int = 80) -> str:
    """YAML from which `load` makes an equal value; plain values only."""
    return yaml.dump(value, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False, width=width)


def load(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        yaml.YAMLError: it is no YAML, or a mapping has a key twice.
    """
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if found := sorted(_repeated(root, set()), key=lambda one: one.second.line):
            listed = "; ".join(one.text for one in found)
            raise yaml.constructor.ConstructorError(problem=f"{listed}: keep one of them", problem_mark=found[0].second)
        return loader.construct_document(root)
    finally:
        loader.dispose()


class _Repeated(NamedTuple):
    text: str
    second: yaml.Mark


def _repeated(node: yaml.Node, seen: set[int]) -> Iterator[_Repeated]:
    """Each key that a mapping has more than once, with the lines; PyYAML takes the last and drops the others."""
    if id(node) in seen:  # an alias, which may even stand inside its own anchor
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for entry in node.value:
            yield from _repeated(entry, seen)
    elif isinstance(node, yaml.MappingNode):
        marks: dict[tuple[str, str], list[yaml.Mark]] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                marks.setdefault((key.tag, key.value), []).append(key.start_mark)
            yield from _repeated(value, seen)
        for (_, key), found in marks.items():
            if len(found) > 1:
                count = "twice" if len(found) == 2 else f"{len(found)} times"
                *places, last = [str(mark.line + 1) for mark in found]
                yield _Repeated(f"{key} stands {count} (lines {', '.join(places)} and {last})", found[1])


def load_keys(text: str, where: str, example: str = "trainer: and below it max_epochs: 3") -> dict[str, Any]:
    """The keys of a YAML file.

    Args:
        text: of the file.
        where: the file, with which messages begin.
        example: keys that such a file may have, for the message.

    Raises:
        UserError: no YAML, a key that stands twice, or no keys at all.
    """
    try:
        settings = load(text)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{where}{line}: not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an integer such as 0b_
        raise UserError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise UserError(f"{where}: not valid YAML: nested too deeply") from error
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise UserError(f"{where} holds no keys: such a file has lines such as {example}")
    return settings


def read_text(path: Path) -> str:
    """The text of a file that a user named.

    Raises:
        UserError: it cannot be read, or is no UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except IsADirectoryError as error:
        raise UserError(f"{path} is a folder: give a YAML file in it") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged: it is no text of YAML in UTF-8") from error


def read_keys(path: Path) -> dict[str, Any]:
    """The keys of a YAML file on disk; see `load_keys` and `read_text`."""
    return load_keys(read_text(path), str(path))
