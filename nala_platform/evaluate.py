"""``nala evaluate``: a run's language model on published tasks, through EleutherAI's lm-evaluation-harness."""

import argparse
import logging
import shlex
import sys
import time
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from nala_platform import runs
from nala_platform.arguments import Arguments, path, positive
from nala_platform.errors import UserError, near
from nala_platform.paths import absolute, shown

if TYPE_CHECKING:
    from nala_platform.trained import Trained

MEND = "pip install 'nala-platform[lm-eval]'"
FOLDER, RESULTS = "evaluate", "results.json"
_SEED = 1234  # of the choice of few-shot examples; the harness's own


def main(words: list[str]) -> None:
    """Score the run that ``words`` name, print a table and write the result beside the run.

    Raises:
        UserError: the harness is not installed; no such run, task or data set; the run is no language model.
    """
    start = time.monotonic()
    options = _arguments().read(words)
    folder = runs.find_run(options.run).folder
    from nala_platform.trained import load_network, load_tokenizer  # heavy: torch, once there is a run

    tokenizer = load_tokenizer(folder)
    if absent := missing():
        raise UserError(f"nala evaluate needs {' and '.join(absent)}, not installed here: {MEND}")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    tasks = _tasks(options)
    trained = load_network(options.run)
    model = _harnessed(trained, tokenizer, options)
    from lm_eval.evaluator import evaluate

    found: Any = evaluate(model, tasks, limit=options.limit, bootstrap_iters=1000, log_samples=False)
    result = _result(found, trained, options, model.max_length) | {"wall_time_s": round(time.monotonic() - start, 1)}
    place = options.output if options.output else runs.new_folder(folder / FOLDER, "") / RESULTS
    runs.write_json(place, result)
    _print(result, place)


def missing() -> list[str]:
    """What of the harness is not installed."""
    return [name for name in ("lm_eval", "accelerate") if util.find_spec(name) is None]


def _arguments() -> Arguments:
    parser = Arguments("nala evaluate", "Score a run's language model on tasks of lm-evaluation-harness.")
    parser.add_argument("run", metavar="RUN", help="a run folder of the task lm, or a .ckpt file in one")
    parser.add_argument("--tasks", required=True, help="names such as piqa,arc_easy, or task YAML files, with commas")
    parser.add_argument("--include_path", type=path, help="a folder with task YAML files of your own")
    parser.add_argument("--limit", type=positive, help="score so many items of each task only")
    parser.add_argument("--num_fewshot", type=int, help="examples before each item; left out: as the task says")
    parser.add_argument("--batch_size", type=positive, default=16)
    parser.add_argument(
        "--max_length", type=positive, help="tokens the model sees, the last ones; left out: its training context"
    )
    parser.add_argument("--device", help="such as cpu or cuda:1; left out: a GPU if there is one")
    parser.add_argument("--output", type=path, help=f"file of the result; left out: RUN/{FOLDER}/<time>/{RESULTS}")
    return parser


def _tasks(options: argparse.Namespace) -> Any:
    """The tasks, their data at hand; before the weights are read, since most mistakes are found here."""
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=None if options.include_path is None else str(options.include_path))
    loaded: dict[str, dict[str, Any]] = {"tasks": {}, "groups": {}, "group_map": {}}
    for name in filter(None, options.tasks.split(",")):
        if Path(name).suffix in (".yaml", ".yml"):
            path = absolute(name)
            if not path.is_file():
                raise UserError(f"no task file {name}")
            name = str(path)
        elif name not in manager.all_tasks:
            raise UserError(f"lm-eval has no task {name!r}{near(name, manager.all_tasks)} A file's name ends in .yaml")
        for kind, entries in _load(manager, name).items():
            loaded[kind] |= entries
    for task in loaded["tasks"].values():
        if options.num_fewshot is not None or task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=options.num_fewshot or 0)
        task.set_fewshot_seed(seed=_SEED)
    return loaded


def _load(manager: Any, name: str) -> dict[str, Any]:
    try:
        return manager.load([name])
    except ConnectionError as error:
        raise UserError(
            f"task {name}: {error}: a task's data is fetched once from the Hugging Face Hub, which needs a network"
        ) from error
    except (OSError, LookupError, TypeError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"task {name} cannot be loaded: {' '.join(str(error).split())}") from error


def _harnessed(trained: "Trained", tokenizer: Any, options: argparse.Namespace) -> Any:
    import torch
    from lm_eval.models.huggingface import HFLM
    from transformers import PreTrainedModel

    network = trained.network
    if not isinstance(network, PreTrainedModel):
        raise UserError(f"{trained.folder} trained a {type(network).__name__}: the harness takes Hugging Face models")
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        trained.network.to(device)
    except RuntimeError as error:
        raise UserError(f"--device {device}: {str(error).splitlines()[0]}") from error
    context = trained.config["data"].get("init_args", {}).get("context")
    harness: Any = HFLM
    return harness(
        pretrained=network,
        backend="causal",
        tokenizer=tokenizer,
        batch_size=options.batch_size,
        max_length=options.max_length or context,
    )


def _result(found: dict[str, Any], trained: "Trained", options: argparse.Namespace, max_length: int) -> dict[str, Any]:
    return {
        "results": [row for name, values in found["results"].items() for row in _rows(name, values)],
        "items": found["n-samples"],
        "num_fewshot": found["n-shot"],
        "task_versions": found["versions"],
        "task_configs": found["configs"],
        "limit": options.limit,
        "batch_size": options.batch_size,
        "max_length": max_length,
        "weights": str(trained.weights.relative_to(trained.folder)),
        "command": shlex.join(["nala", *sys.argv[1:]]),
        "versions": runs.versions() | {"lm_eval": metadata.version("lm_eval")},
    }


def _rows(task: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a metric; the harness's keys are ``metric,filter`` and ``metric_stderr,filter``."""
    rows = []
    for key, value in values.items():
        metric, comma, chosen = key.partition(",")
        if comma and not metric.endswith("_stderr"):
            error = values.get(f"{metric}_stderr,{chosen}")
            label = metric if chosen == "none" else f"{metric} ({chosen})"
            stderr = error if isinstance(error, float) else None
            rows.append({"task": task, "metric": label, "value": value, "stderr": stderr})
    return rows


def _print(result: dict[str, Any], path: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in ("task", "metric", "value", "stderr"):
        table.add_column(column, justify="right" if column in ("value", "stderr") else "left")
    for row in result["results"]:
        stderr = "" if row["stderr"] is None else f"{row['stderr']:.4f}"
        table.add_row(row["task"], row["metric"], f"{row['value']:.4f}", stderr)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print(f"the model saw the last {result['max_length']} tokens of an item at most (--max_length)")
    console.print(f"result: {shown(path)}", soft_wrap=True, highlight=False)
