"""A run's network as it was trained, without its trainer."""

from pathlib import Path
from typing import Any, NamedTuple

from jsonargparse import ArgumentError, ArgumentParser
from torch import Tensor, nn

from nala_platform import yaml_files
from nala_platform.errors import UserError
from nala_platform.models.checkpoint import read_weights
from nala_platform.runs import CHECKPOINTS, TOKENIZER, WEIGHTS, find_run


class Trained(NamedTuple):
    """A run's network in evaluation mode on the CPU, the file its weights are from, and the run's configuration."""

    folder: Path
    network: nn.Module
    weights: Path
    config: dict[str, Any]


def load_network(where: str) -> Trained:
    """Build the network that a run's ``config.yaml`` describes, with its best weights or those of a checkpoint.

    Args:
        where: a run folder (``checkpoints/model.safetensors``, else its checkpoint) or a ``.ckpt`` file in one.

    Raises:
        UserError: no run there, or weights that do not fit its configuration.
    """
    run = find_run(where)
    config = yaml_files.read_keys(run.config)
    weights = run.folder / CHECKPOINTS / WEIGHTS
    if Path(where).is_file() or not weights.is_file():
        weights = run.checkpoint
    network = _build(config, run.config)
    try:
        network.load_state_dict(_state(weights))
    except RuntimeError as error:
        raise UserError(
            f"{weights} does not fit the network of {run.config}: {' '.join(str(error).split())}"
        ) from error
    return Trained(run.folder, network.eval(), weights, config)


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a language run.

    Raises:
        UserError: the run has none.
    """
    from transformers import AutoTokenizer  # heavy, and not for runs on pictures

    path = folder / TOKENIZER
    if not path.is_dir():
        raise UserError(f"{folder} has no folder {TOKENIZER}: it is no run of a language model")
    return AutoTokenizer.from_pretrained(path, local_files_only=True)


def _build(config: dict[str, Any], path: Path) -> nn.Module:
    try:
        described = config["model"]["init_args"]["network"]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path} describes no model.network") from error
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--network", type=nn.Module)
    try:
        return parser.instantiate(parser.parse_object({"network": described})).network
    except ArgumentError as error:
        raise UserError(f"{path}, model.network: {' '.join(str(error).split())}") from error


def _state(weights: Path) -> dict[str, Tensor]:
    state = read_weights(weights)
    if weights.name == WEIGHTS:
        return state
    prefix = "network."  # where the task keeps it
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
