"""Study files: where they are, and YAML read as a person means it."""

import re
from pathlib import Path
from typing import Any

import yaml

from nala_platform.errors import UserError, near

STUDIES = Path(__file__).parent


class _Loader(yaml.SafeLoader):
    """YAML 1.2's floats: by the rules of 1.1, which PyYAML follows, ``1e-3`` is a text. And no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As PyYAML does, which takes the last of several lines with one key."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"{key.value} stands twice", problem_mark=key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def find_study(name: str) -> Path:
    """The file that ``name`` means: a path that exists, or a study that is shipped.

    Raises:
        UserError: neither exists.
    """
    for candidate in (Path(name), STUDIES / name, STUDIES / f"{name}.yaml"):
        if candidate.is_file():
            return candidate
    shipped = sorted(path.stem for path in STUDIES.glob("*.yaml"))
    raise UserError(f"no study {name!r}{near(name, shipped)} Shipped: {', '.join(shipped)}; or give a path")


def read_text(path: Path) -> str:
    """Of a study file.

    Raises:
        UserError: it cannot be read, or is no text.
    """
    try:
        return path.read_text()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text: a study is a YAML file") from error


def read_settings(text: str, where: str) -> dict[str, Any]:
    """The keys of a study file.

    Raises:
        UserError: no YAML, or no keys; the message begins with ``where``.

    >>> read_settings("space: {lr: [1e-3, 2E4, '1e-3']}", "my.yaml")
    {'space': {'lr': [0.001, 20000.0, '1e-3']}}
    """
    try:
        settings = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{where}{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(settings, dict):
        raise UserError(f"{where} holds no keys: a study has task: and space:")
    return settings
