"""One clear line from what jsonargparse says of a mistake.

jsonargparse reports every type that a value failed against, nested as the configuration is; the words that matter are
the innermost ones. The shapes handled here are those of jsonargparse 4.53, each held by a test; of anything else the
beginning is passed on, on one line.
"""

import contextlib
import dataclasses
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import yaml
from jsonargparse import ArgumentParser

from nala_platform import yaml_files
from nala_platform.errors import near
from nala_platform.optim import schedule_refusal
from nala_platform.runs.moved import renamed

# The keys of `nala fit` at the top, most used first; tests/test_parse_errors.py compares them with the parser's own.
_TOP = (
    *("trainer", "model", "data", "checkpoint", "ema", "report", "task", "config", "resume", "reset", "folder", "name"),
    *("runs_dir", "ckpt_path", "compile", "bad_samples", "max_image_pixels", "seed_everything", "weights_only"),
    "print_config",
)
_PARSER_KEY = re.compile(r'Parser key "([\w.]+)"')
_NESTED = re.compile(r"Given value: NestedArg\(key='([\w.+]+)', val=(.*)\)")
_UNKNOWN = (
    re.compile(r"Option '([\w.+]+)' is not accepted"),
    re.compile(r"unrecognized arguments: --([\w.+]+)"),
    re.compile(r"Subcommand '\w+' does not accept option '([\w.]+)'"),
)
_GROUP = re.compile(r"Group '([\w.]+)' does not accept option '([\w.]+)'")
_CLASS = re.compile(r"Problem with given class_path '(.*?)':\s*(.*)")
_EXPECTED = re.compile(r"Expected (?:an? )?<class '([\w.]+)'>|Expected an? (.+)")
_REQUIRED = re.compile(r"the following arguments are required: ([\w, ]+)")
_SEVERAL = re.compile(r"Multiple subclasses with name (\w+)\..*?ambiguity: (.*?)\.?$", re.MULTILINE)
_RETURNS = re.compile(r"to be a function that returns <class '(\w+)'>")
_WANTS_CLASS = "Not a valid subclass of"
_NAME = re.compile(r"'?[A-Za-z_][\w.]*'?")
_CONTAINERS = {"Iterable", "bool", "list"}
_SCHEDULE: tuple[str, ...] = ("model.schedule", "model.schedule.class_path")
_EXAMPLE = "nala_platform.data.images.digits.DigitsData"
_CLASSES = {  # where a class has a short name, and an example of a path
    "model.optimizer": ("torch.optim", "timm.optim.Lamb"),
    "model.schedule": ("torch.optim.lr_scheduler", "nala_platform.optim.WarmupCosine"),
    "model.network": ("", "nala_platform.models.segmenter.Segmenter"),
    "trainer.callbacks": ("lightning.pytorch.callbacks", "lightning.pytorch.callbacks.EarlyStopping"),
    "trainer.logger": ("lightning.pytorch.loggers", "lightning.pytorch.loggers.CSVLogger"),
}
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
    if 'Parser key "schedule"' in message and (refusal := _schedule_refusal(words)):
        return refusal  # its keys are not to the point
    if found := _GROUP.search(message):
        return _unknown(".".join((*outer[1:], *found.groups())), words)
    for pattern in _UNKNOWN:
        found = pattern.search(message)
        # a list takes the value or a single class does; what the one has against the value, the other has no key for
        if found and not re.search(rf'Parser key "{re.escape(found[1])}":\s+(Expected|Does not)', message):
            path = f"{outer[0]}.{nested.group(1)}" if nested else ".".join((*outer, found[1]))
            return _unknown(path, words)
    path = f"{outer[0]}.{nested.group(1)}" if nested and outer else ".".join(outer)
    if found := _CLASS.search(message):
        return f"{path}: cannot use {found.group(1)!r}: {found.group(2)}"
    if path and (found := _REQUIRED.search(message)):
        keys = " and ".join(f"--{path}.{key}" for key in found.group(1).strip().split(", "))
        return f"{keys} must be given: there is no default"
    value = _meant(_loaded(nested.group(2))) if nested else _given(message, str(path).split(".")[1:])
    if path and value is not None:
        said = _refused(path, value, message)
        return f"{path} {said}" if said.startswith("is null") else f"{path}: {said}"
    return _loose(message, path)


def _refused(path: str, value: str, message: str) -> str:
    """What is wrong with a value."""
    kinds = [(first or second).partition(". Got value")[0] for first, second in _EXPECTED.findall(message)]
    wanted = [re.sub(r"^[\w.]*\.", "", kind) for kind in dict.fromkeys(kinds) if not kind.startswith(_IMPLIED)]
    module, example = next((row for key, row in _CLASSES.items() if path.startswith(key)), ("", _EXAMPLE))
    if found := _SEVERAL.search(message):
        return f"{found[1]} is the name of several classes: write the path of one of {found[2]}"
    if found := _RETURNS.search(message):
        return f"cannot use {value}: it must be a class, or a function that says that it returns one: {found[1]}"
    is_class = "dot import path string" in message and set(wanted) <= _CONTAINERS
    if is_class and _NAME.fullmatch(value):
        meant = near(value.strip("'"), _classes(module))
        return f"no class {value}: write its whole path, such as {example}" + meant.removesuffix(".")
    if wanted and value in ("None", "'null'"):
        return f"is null: it must be {' or '.join(wanted)}; leave the key away for its default"
    if wanted:
        options = re.findall(r"'([^']*)'", "".join(kind for kind in wanted if kind.startswith("Literal")))
        return f"expected {' or '.join(wanted)}, got {value}" + near(value.strip("'"), options).removesuffix(".")
    return f"cannot use {value}" + (
        f": write the path of a class, such as {example}" if _WANTS_CLASS in message else ""
    )


def _classes(module: str) -> list[str]:
    """The classes that a library shows in a module."""
    found = vars(import_module(module)).items() if module else ()
    home = module.partition(".")[0]
    return [name for name, entry in found if isinstance(entry, type) and entry.__module__.partition(".")[0] == home]


def _loose(message: str, path: str) -> str:
    """The line where no value is told, or none of the shapes above."""
    if found := re.search(r"argument (--[\w.+]+): expected one argument", message):
        return f"{found[1]} needs a value"
    if found := re.search(r"unrecognized arguments: ([^-].*)", message):
        return f"nothing can be done with {found[1]!r}: keys begin with --"
    if found := re.search(r"Unable to load config ['\"](.*)['\"]", message):
        path = ".".join(dict.fromkeys(path.split(".")))  # named twice
        return f"{path}: cannot use {found[1]}: it has keys below it, which are given one by one, as --{path}.KEY VALUE"
    whole = " ".join(message.split())
    return f"{path}: {whole[:200]} …" if path and len(whole) > 200 else whole


def _schedule_refusal(words: list[str]) -> str | None:
    name = next((found for key in _SCHEDULE if (found := _typed(key, words))), None)
    name = name or _configured(["model", "schedule"], words)
    return schedule_refusal(name) if name else None


def _given(message: str, path: list[str]) -> str | None:
    values = re.findall(r"Given value: (.*)", message) or re.findall(r"Got value: (.*)", message)
    value = yaml_files.load(values[0]) if values else None
    for part in path:  # from a file comes the whole branch; the path leads to the leaf
        if isinstance(value, dict):
            value = value.get(part, value.get("init_args", {}).get(part))
    return _meant(value) if values else None


def _meant(value: Any) -> str:
    """A value as a message shows it: what is typed reaches a key as text, and is told as the value that it means."""
    meant = _loaded(value) if isinstance(value, str) else value
    return repr(value if meant is None else meant)


def _loaded(text: str) -> Any:
    """The value of a text of YAML; the text itself where it is none."""
    with contextlib.suppress(yaml.YAMLError):
        return yaml_files.load(text)
    return text


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

    Examples:
        >>> keys_under("model.schedule", ["fit", "--model.schedule", "nala_platform.optim.WarmupCosine"])
        ['warmup', 'final']
    """
    if not parent:
        return list(_TOP)
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
