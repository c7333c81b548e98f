"""A run's network, or its whole task, as it was trained, without its trainer."""

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from nala_platform import yaml_files
from nala_platform.errors import UserError
from nala_platform.models.checkpoint import read_weights
from nala_platform.runs import CHECKPOINTS, CONFIG, TOKENIZER, WEIGHTS, find_run
from nala_platform.runs.checkpoint_file import CheckpointFile
from nala_platform.runs.contents import refuse_incomplete

Built = TypeVar("Built", bound=nn.Module)


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


def load_task(path: Path, config: Path | None, map_location: Any, strict: bool) -> LightningModule:
    """Build the task that a run's ``config.yaml`` describes, with the weights of a checkpoint.

    Args:
        path: of the checkpoint.
        config: file to build from; None: the ``config.yaml`` of the run folder that the checkpoint lies in.
        map_location: see `torch.load`; None: where the tensors were saved from.
        strict: whether the weights must be those of the task, all and no others.

    Raises:
        UserError: no checkpoint, no configuration, or weights that do not fit it.
    """
    if not path.is_file():
        raise UserError(f"no checkpoint at {path}: give the path of a .ckpt file in a run folder")
    config = path.absolute().parent.parent / CONFIG if config is None else config
    if not config.is_file():
        raise UserError(
            f"{path} cannot be loaded without the run's {CONFIG}, which says what to build: there is none at {config}; "
            f"give its path as hparams_file, or the parts themselves (network=…, optimizer=…, schedule=…)"
        )
    task = _built(yaml_files.read_keys(config), "model", LightningModule, config)
    checkpoint = CheckpointFile().load_checkpoint(path, map_location=map_location, weights_only=True)
    refuse_incomplete(checkpoint, path, trains=False)
    task.on_load_checkpoint(checkpoint)
    try:
        task.load_state_dict(checkpoint["state_dict"], strict=strict)
    except RuntimeError as error:
        raise UserError(f"{path} does not fit the model of {config}: {' '.join(str(error).split())}") from error
    return task.to(next(iter(checkpoint["state_dict"].values())).device)


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
    return _built(config, "model.init_args.network", nn.Module, path)


def _built(config: dict[str, Any], key: str, kind: type[Built], path: Path) -> Built:
    """The object that stands under ``key`` of a run's configuration, on the CPU; its weights are still to come."""
    described: Any = config
    try:
        for part in key.split("."):
            described = described[part]
        network = config["model"]["init_args"]["network"]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path} describes no model.network") from error
    if isinstance(network, dict) and isinstance(network.get("init_args"), dict):
        # weights that the run began with may be gone by now, and would be overwritten
        options = network["init_args"]
        options.update({name: None for name in ("checkpoint_path",) if name in options})
        options.update({name: False for name in ("pretrained",) if name in options})
    parser = ArgumentParser(exit_on_error=False)
    name = key.rpartition(".")[2]
    parser.add_argument(f"--{name}", type=kind)
    try:
        return parser.instantiate(parser.parse_object({name: described}))[name]
    except ArgumentError as error:
        said = " ".join(str(error).split())
        raise UserError(f"{path}, {key.replace('.init_args', '')}: {said}") from error


def _state(weights: Path) -> dict[str, Tensor]:
    state = read_weights(weights)
    if weights.name == WEIGHTS:
        return state
    prefix = "network."  # where the task keeps it
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
