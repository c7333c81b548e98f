"""One clear line from what jsonargparse says of a mistake.

jsonargparse reports every type that a value failed against, nested as the configuration is; the words that matter are
the innermost ones. The shapes handled here are those of jsonargparse 4.53, each held by a test; anything else is passed
on whole, on one line.
"""

import dataclasses
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from jsonargparse import ArgumentParser

from nala_platform import yaml_files
from nala_platform.errors import near
from nala_platform.runs.moved import renamed

_PARSER_KEY = re.compile(r'Parser key "([\w.]+)"')
_NESTED = re.compile(r"Given value: NestedArg\(key='([\w.+]+)', val=(.*)\)")
_UNKNOWN = (
    re.compile(r"Option '([\w.+]+)' is not accepted"),
    re.compile(r"unrecognized arguments: --([\w.+]+)"),
    re.compile(r"Subcommand '\w+' does not accept option '([\w.]+)'"),
)
_GROUP = re.compile(r"Group '([\w.]+)' does not accept option '([\w.]+)'")
_CLASS = re.compile(r"Problem with given class_path '(.*?)':\s*(.*)")
_EXPECTED = re.compile(r"Expected an? (?:<class '([\w.]+)'>|(.+))")
_REQUIRED = re.compile(r"the following arguments are required: ([\w, ]+)")
_IMPLIED = ("NoneType", "Tensor", "path but", "dot import path")  # allowed too, but not what was meant


NO_MODEL = "nothing says what to train: add --task NAME (nala tasks lists them), or a --config with model and data"


def explain(message: str, words: list[str]) -> str:
    """The line for a person: key, value, what is wrong, and the nearest key where one was mistyped.

    Args:
        message: from jsonargparse.
        words: the expanded command line that was parsed; its files and class paths tell which keys there are.
    """
    if re.search(r"required: \w+\.model", message):
        return NO_MODEL
    outer: list[str] = _PARSER_KEY.findall(message)
    nested = next(reversed(list(_NESTED.finditer(message))), None)  # the outermost has the whole path
    if found := _GROUP.search(message):
        return _unknown(".".join((*outer[1:], *found.groups())), words)
    for pattern in _UNKNOWN:
        if found := pattern.search(message):
            leaf = found.group(1)
            path = f"{outer[0]}.{nested.group(1)}" if nested else ".".join((*outer, leaf))
            return _unknown(path, words)
    path = f"{outer[0]}.{nested.group(1)}" if nested and outer else ".".join(outer)
    if found := _CLASS.search(message):
        return f"{path}: cannot use {found.group(1)!r}: {found.group(2)}"
    if path and (found := _REQUIRED.search(message)):
        keys = " and ".join(f"--{path}.{key}" for key in found.group(1).strip().split(", "))
        return f"{keys} must be given: there is no default"
    value = nested.group(2) if nested else _given(message, str(path).split(".")[1:])
    kinds = [(first or second).split(".")[-1] for first, second in _EXPECTED.findall(message)]
    wanted = list(dict.fromkeys(kind for kind in kinds if not kind.startswith(_IMPLIED)))
    if path and wanted and value is not None:
        return f"{path}: expected {' or '.join(wanted)}, got {value}"
    if path and value is not None and "dot import path string" in message:
        return f"{path}: no class {value}: write its whole path, such as nala_platform.data.images.digits.DigitsData"
    return " ".join(message.split())


def _given(message: str, path: list[str]) -> str | None:
    values = re.findall(r"Given value: (.*)", message)
    value = yaml_files.load(values[0]) if values else None
    for part in path:  # from a file comes the whole branch; the path leads to the leaf
        if isinstance(value, dict):
            value = value.get(part, value.get("init_args", {}).get(part))
    return repr(value) if values else None


def _unknown(path: str, words: list[str]) -> str:
    parts = path.replace(".init_args", "").split(".")
    if parts[0] == "model" and not any(_typed(key, words) for key in ("model", "model.class_path")):
        if _configured(["model"], words) is None:  # an overlay, such as smoke, of nothing
            return NO_MODEL
    for depth, part in enumerate(parts):
        known = keys_under(".".join(parts[:depth]), words)
        if known and part not in known:
            wrong = ".".join(parts[: depth + 1])
            meant = near(part, known)
            listed = f" Keys there: {', '.join(known)}" if meant == "." else ""
            return f"no key --{wrong}{meant}{listed}"
    return f"no key --{path}"


def keys_under(parent: str, words: list[str]) -> list[str]:
    """The keys below ``parent`` (dotted, empty for the top) for the classes that this command line names.

    >>> keys_under("model.schedule", ["fit", "--model.schedule", "nala_platform.optim.WarmupCosine"])
    ['warmup', 'final']
    """
    if not parent:
        return [
            "trainer",
            "model",
            "data",
            "checkpoint",
            "ema",
            "report",
            "task",
            "name",
            "runs_dir",
            "bad_samples",
            "seed_everything",
        ]
    fixed = {
        "trainer": "lightning.pytorch.Trainer",
        "checkpoint": "nala_platform.callbacks.checkpoint.RunCheckpoint",
    }
    if parent in fixed:
        return _keys(fixed[parent])
    path = parent.split(".")
    own = _keys(_typed(parent, words) or _configured(path, words))
    if own:
        # an optimizer's first parameter and a schedule's first two are handed over by the task
        handed_over = ("optimizer", "total_steps") if "total_steps" in own else ("params",)
        return [key for key in own if "." not in key and key not in handed_over]
    # a group of settings, such as data.augment: a dataclass in the signature of the class above it
    owner = _target(_typed(".".join(path[:-1]), words) or _configured(path[:-1], words))
    entry = inspect.signature(owner).parameters.get(path[-1]) if owner else None
    kinds = (entry.annotation, *get_args(entry.annotation)) if entry else ()  # itself, or one of X | None
    return [field.name for kind in kinds if dataclasses.is_dataclass(kind) for field in dataclasses.fields(kind)]


def _typed(key: str, words: list[str]) -> str | None:
    for index, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag == f"--{key}" and (equals or index + 1 < len(words)):
            return value if equals else words[index + 1]
    return None


def _configured(path: list[str], words: list[str]) -> str | None:
    found = None
    for index, word in enumerate(words[:-1]):
        if word == "--config":
            node: Any = yaml_files.load(renamed(yaml_files.read_text(Path(words[index + 1]))))
            for part in path:
                node = node.get(part, node.get("init_args", {}).get(part)) if isinstance(node, dict) else None
            if isinstance(node, dict):
                found = node.get("class_path", found)
    return found


def _target(class_path: str | None) -> Any:
    module_name, _, name = renamed(class_path or "").rpartition(".")
    if not module_name:
        return None
    try:
        return getattr(import_module(module_name), name)
    except (ImportError, AttributeError):  # the class path itself is wrong; jsonargparse's own message says so
        return None


def _keys(class_path: str | None) -> list[str]:
    """What jsonargparse takes for the class or function; it follows ``**options`` to where they go."""
    target = _target(class_path)
    if target is None:
        return []
    parser = ArgumentParser()
    add = parser.add_class_arguments if isinstance(target, type) else parser.add_function_arguments
    return add(target, fail_untyped=False)
