"""What a person types, rewritten to what LightningCLI parses. Pure functions on lists of strings; imports no torch.

``nala fit --task seg --trainer.max_epochs 3 --config my.yaml`` becomes
``fit --config <conf>/base.yaml --config <conf>/seg.yaml --config my.yaml --task seg --trainer.max_epochs 3``:
files come first in their order, what was typed comes last, so a typed flag beats a file wherever it stood.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

from nala_platform import runs, yaml_files
from nala_platform.errors import UserError, near

CONF = Path(__file__).parent / "conf"
if not CONF.is_dir():  # an editable install: the package's conf is the folder at the top of the repository
    CONF = Path(__file__).parent.parent / "conf"

COMMANDS = ("fit", "validate", "test", "predict")
_CONFIG_FLAGS = ("--config", "-c")
_FLAG = re.compile(r"--?[A-Za-z][\w.+-]*(=.*)?$", re.DOTALL)


class Task(NamedTuple):
    """One row of ``nala tasks``: a task's name and its defaults, as its YAML file states them."""

    name: str
    title: str
    data: str
    network: str
    metric: str


def tasks() -> list[Task]:
    """The tasks there are: every ``conf/<name>.yaml`` whose own ``task`` key says ``<name>``, in that order."""
    found = []
    for path in sorted(CONF.glob("*.yaml")):
        settings = yaml_files.read_keys(path)
        if settings.get("task") != path.stem:
            continue
        model, data = settings["model"], settings["data"]
        network = model["init_args"]["network"]
        options = ", ".join(str(value) for value in network.get("init_args", {}).values() if isinstance(value, str))
        title = " ".join(model["class_path"].split(".")[-2].split("_"))
        short = f"{network['class_path'].split('.')[-1]}({options})"
        found.append(
            Task(path.stem, title, data["class_path"].split(".")[-1], short, settings["checkpoint"]["monitor"])
        )
    return found


def conf_file(name: str) -> Path:
    """The file that ``--config name`` means: a path that exists, or an overlay of ``conf/``.

    Raises:
        UserError: neither exists, or it is no readable YAML file with keys.
    """
    given = Path(name).expanduser()
    try:
        found = next((path for path in (given, CONF / name, CONF / f"{name}.yaml") if path.is_file()), None)
        if found is None and given.exists():
            raise UserError(f"--config {name} is no file: give a YAML file")
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}") from error
    if found is not None:
        yaml_files.read_keys(found)
        return found
    overlays = sorted(path.stem for path in CONF.glob("*.yaml"))
    raise UserError(f"no config file {name!r}{near(name, overlays)} Shipped: {', '.join(overlays)}; or give a path")


def expand(argv: list[str]) -> list[str]:
    """Rewrite a command line; see the module's text.

    Args:
        argv: beginning with one of `COMMANDS`. ``validate``, ``test`` and ``predict`` take a run folder or checkpoint
            as their first word: its ``config.yaml`` and best checkpoint are used. ``fit --resume RUN`` takes that
            run's ``config.yaml`` as the first file. ``--resume auto --folder RUN`` does so if RUN holds a run, and else
            begins one there: the same words serve for the first start and for each one after it.

    Raises:
        UserError: an unknown task or config file, a value missing, or nothing that says what to run.

    """
    command, words = argv[0], _with_texts(argv[1:])
    files: list[str] = []
    typed: list[str] = []
    resumed: str | None = None
    if words and not words[0].startswith("-"):
        run = _run(command, words.pop(0))
        files.append(str(run.config))
        if not any(_is_flag(word, "--ckpt_path") for word in words):
            typed += ["--ckpt_path", str(run.checkpoint)]
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        if flag in ("--task", "--resume", *_CONFIG_FLAGS):
            if not equals:
                if not words:
                    raise UserError(f"{flag} needs a value")
                value = words.pop(0)
            if flag == "--resume":
                resumed = _resumed(command, value, [*typed, *words])
            elif flag == "--task":
                typed += ["--task", value]
                files = [str(CONF / "base.yaml"), str(CONF / f"{_known_task(value)}.yaml"), *files]
            else:
                files.append(str(conf_file(value)))
        else:
            typed.append(word)
    if resumed is not None:
        # behind the task's own defaults, before the files that are typed now
        files.insert(
            2 if any(_is_flag(word, "--task") for word in typed) else 0,
            str(conf_file(str(runs.find_folder(resumed) / runs.CONFIG))),
        )
        typed = [*_without(typed, "--folder"), "--resume", resumed]
    if not files and not {"--help", "-h"} & set(typed):
        raise UserError(
            f"nala {command} needs --task NAME ({', '.join(task.name for task in tasks())}) or --config FILE"
        )
    return [command, *(part for file in files for part in ("--config", file)), *typed]


def _with_texts(words: list[str]) -> list[str]:
    """``--flag ---`` as ``--flag=---``: a text may begin with a dash.

    Examples:
        >>> _with_texts(["--name", "-- a", "--model.final", "-1e-3", "--x", "--y", "z"])
        ['--name=-- a', '--model.final=-1e-3', '--x', '--y', 'z']
    """
    joined: list[str] = []
    for word in words:
        is_text = word.startswith("-") and not _FLAG.match(word)
        if is_text and joined and _FLAG.match(joined[-1]) and "=" not in joined[-1]:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _run(command: str, where: str) -> runs.Run:
    if command == "fit":
        raise UserError(
            f"nala fit does not know what to do with {where!r}: flags begin with --, such as --task or --resume"
        )
    run = runs.find_run(where)
    if Path(where).is_dir() and run.checkpoint.name != runs.BEST:
        best = run.folder / runs.CHECKPOINTS / runs.BEST
        print(f"nala: warning: {best} is missing; {run.checkpoint.name}, the latest state, is used", file=sys.stderr)
    return run


def _resumed(command: str, where: str, others: list[str]) -> str | None:
    """The run to go on with; None: ``auto`` has found none, so one begins."""
    if command != "fit":
        raise UserError(f"nala {command} RUN scores or uses a run; --resume goes with nala fit")
    folder = typed_value(others, "--folder")
    if where != "auto":
        if folder is not None:
            raise UserError("--resume RUN goes on in the run's own folder: leave --folder away")
        return where
    if folder is None:
        raise UserError("--resume auto needs --folder RUN: the run to go on with, or to begin")
    return folder if (Path(folder).expanduser() / runs.CONFIG).is_file() else None


def typed_value(words: list[str], flag: str) -> str | None:
    """What follows the flag; None if it was not typed."""
    for place, word in enumerate(words):
        if _is_flag(word, flag):
            return word.partition("=")[2] if "=" in word else " ".join(words[place + 1 : place + 2])
    return None


def _without(words: list[str], flag: str) -> list[str]:
    kept, skip = [], False
    for word in words:
        if not skip and not _is_flag(word, flag):
            kept.append(word)
        skip = not skip and word == flag
    return kept


def _is_flag(word: str, flag: str) -> bool:
    return word.partition("=")[0] == flag


def _known_task(name: str) -> str:
    names = [task.name for task in tasks()]
    if name not in names:
        raise UserError(f"no task {name!r}{near(name, names)} Tasks: {', '.join(names)} (nala tasks says more)")
    return name
