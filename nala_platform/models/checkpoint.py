"""Weights from files: the authors' checkpoints, this platform's own, and any timm file.

A network's own state dict has the released NaLaFormer's key names. What differs in a file is its wrapping
(``{"model": …}``, ``{"model_ema": …}``, ``{"state_dict": …}``), prefixes (``network.``, ``_orig_mod.``, ``module.``),
the rotary frequencies ``layers.N.RoPE.angle`` (constants here), and the number of classes.

A file may hold several sets of weights, such as ``{"model": …, "ema_model": …}``. The rule is timm's: averaged weights
come before plain ones. So the first is taken of: an entry with ``ema`` in its name; ``state_dict``, which is the
average too in a checkpoint of this platform with one; ``model``; any other entry, in the order of the file. Which one
was taken is logged as a warning where there was a choice.
"""

import argparse
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from nala_platform.errors import UserError

_ROTARY = re.compile(r"(^|\.)layers\.\d+\.RoPE\.angle$")
_WRAPPERS = ("state_dict", "model")
_AVERAGED = re.compile(r"(^|[_.])ema($|[_.])", re.IGNORECASE)
_log = logging.getLogger(__name__)
_FILE_PREFIXES = ("", "network.", "network.backbone.", "network.backbone.model.", "backbone.", "model.")
_MODEL_PREFIXES = ("", "model.")


@dataclass(frozen=True)
class LoadReport:
    """What `load_backbone` did: tensors of the model that the file gave, out of how many; names of the rest."""

    matched: int
    total: int
    missing: tuple[str, ...]
    """Names in the model that the file did not give, with both shapes where they differ."""
    unexpected: tuple[str, ...]
    """Names in the file that the model does not have."""

    def __str__(self) -> str:
        """One line for a person."""
        text = f"{self.matched}/{self.total} tensors matched"
        if self.missing:
            text += f"; new: {_shortened(self.missing)}"
        if self.unexpected:
            text += f"; left out: {_shortened(self.unexpected)}"
        return text


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors in a ``.safetensors`` file or a torch checkpoint, unwrapped; averaged (EMA) weights come first.

    Of several sets of weights one is taken, by the rule at the head of this module, and a warning says which. Torch
    files are read with ``weights_only=True``. Keys lose ``_orig_mod.`` and ``module.``, and the authors' rotary
    constants are left out.

    Raises:
        UserError: no such file, or a file that is not a checkpoint or is damaged.
    """
    if not Path(path).is_file():
        near = get_close_matches(Path(path).name, (p.name for p in Path(path).parent.glob("*")), n=1)
        raise UserError(f"checkpoint_path {path} is not a file{f'; did you mean {near[0]}?' if near else ''}")
    return _unwrapped(_load(path), path)


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """timm's hook for pretrained weights: unwrap the authors' files, take away what is not a weight of ``model``."""
    return _unwrapped(state_dict, "the checkpoint")


def load_backbone(model: nn.Module, path: str | Path) -> LoadReport:
    """Load into ``model`` whatever fits in name and shape, and say what did not.

    ``model`` is a classifier or a feature pyramid of any timm network; the file is the authors', timm's, or a
    checkpoint of this platform, of a classifier or a segmenter. Where the number of classes differs the backbone loads
    and the last layer stays new. BN's batch counters are not counted.

    Raises:
        UserError: the file cannot be read, or nothing in it fits.
    """
    weights, own = read_weights(path), model.state_dict()
    pairing = _best_pairing(weights, own)
    fitting = {ours: weights[theirs] for ours, theirs in pairing.items() if weights[theirs].shape == own[ours].shape}
    if not _counted(fitting):
        raise UserError(
            f"{path} does not fit the model: none of its {len(weights)} tensors ({_shortened(tuple(weights))}) "
            f"matches one of the model's {len(own)} ({_shortened(tuple(own))}) in name and shape"
        )
    missing = []
    for name in _counted(own):
        if name in pairing and name not in fitting:
            missing.append(f"{name} {tuple(own[name].shape)}, in the file {tuple(weights[pairing[name]].shape)}")
        elif name not in fitting:
            missing.append(name)
    model.load_state_dict(fitting, strict=False)
    unexpected = tuple(name for name in _counted(weights) if name not in set(pairing.values()))
    return LoadReport(len(_counted(fitting)), len(_counted(own)), tuple(missing), unexpected)


def accept_released_weights(model: nn.Module, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
    """A ``load_state_dict`` pre-hook of NaLaFormer: make the authors' checkpoints load, strictly too.

    An authors' file is known by its rotary constants; they are taken away. If its number of classes differs, the model
    keeps its own new last layer, and says so. Any other state dict is left alone, so that a wrong one stops as usual.
    """
    constants = [name for name in state_dict if name.startswith(prefix) and _ROTARY.search(name)]
    if not constants:
        return
    for name in constants:
        del state_dict[name]
    own = model.state_dict()
    heads = {name: own.get(name) for name in ("head.weight", "head.bias")}
    if all(_same_shape(state_dict.get(prefix + name), tensor) for name, tensor in heads.items()):
        return
    for name, tensor in heads.items():
        state_dict.pop(prefix + name, None)
        if tensor is not None:
            state_dict[prefix + name] = tensor
    total, kept = len(_counted(own)), sum(tensor is not None for tensor in heads.values())
    print(f"released weights: {total - kept}/{total} tensors, the number of classes differs: the last layer is new")


def accept_whole_model(pyramid: nn.Module, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
    """A ``load_state_dict`` pre-hook of timm's feature wrapper around NaLaFormer: accept a whole classifier's weights.

    They get the wrapper's prefix ``model.``; the head and the stages that the wrapper has cut off are left out.
    """
    inner = f"{prefix}model."
    if any(name.startswith(inner) for name in state_dict):
        return
    own = pyramid.state_dict()
    kept_stages = {name.split(".")[2] for name in own if name.startswith("model.layers.")}
    last = max(kept_stages)
    cut = re.compile(rf"(proj|norm|head)\.|layers\.({last}\.downsample|(?!({'|'.join(kept_stages)})\.))")
    for name in [name for name in state_dict if name.startswith(prefix)]:
        value, inside = state_dict.pop(name), name.removeprefix(prefix)
        if not cut.match(inside) or f"model.{inside}" in own:
            state_dict[inner + inside] = value


def _load(path: str | Path) -> Any:
    """Whatever is in the file."""
    try:
        if Path(path).suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):  # what the authors keep beside their weights
            return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise UserError(
            f"{path} cannot be read as a checkpoint: it is none, or it holds Python objects beside plain weights"
        ) from error
    except (RuntimeError, OSError, EOFError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} cannot be read as a checkpoint (cut off while copying?): {reason}") from error


def _unwrapped(content: Any, path: str | Path) -> dict[str, Tensor]:
    if not isinstance(content, Mapping):
        raise UserError(f"{path} holds a {type(content).__name__}, not named weights")
    found = _weight_sets(content)
    taken = next(iter(found), None)
    if len(found) > 1:
        others = ", ".join(key for key in found if key != taken)
        _log.warning("%s holds several sets of weights: %s was taken, not %s", path, taken, others)
    inside = content if taken is None else found[taken]
    named = {}
    for name, value in inside.items():
        if isinstance(value, Tensor) and not _ROTARY.search(name):
            named[re.sub(r"(^|\.)(_orig_mod|module)\.", r"\1", name)] = value
    return named


def _weight_sets(content: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The entries that are named weights, the one to take first; empty: the content itself is.

    What wraps the weights once more, such as ``{"ema": {"decay": 0.99, "module": {…}}}``, is unwrapped.
    """
    if any(isinstance(value, Tensor) and value.ndim for value in content.values()):
        return {}
    found = {}
    for key, value in content.items():
        if not isinstance(value, Mapping) or "param_groups" in value:  # an optimizer's state
            continue
        inner = _weight_sets(value)
        if inner:
            found[key] = inner[next(iter(inner))]
        elif any(isinstance(entry, Tensor) and entry.ndim for entry in value.values()):
            found[key] = value

    def place(key: str) -> tuple[bool, int]:
        return not _AVERAGED.search(key), _WRAPPERS.index(key) if key in _WRAPPERS else len(_WRAPPERS)

    return {key: found[key] for key in sorted(found, key=place)}


def _same_shape(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and one.shape == other.shape


def _canonical(name: str) -> str:
    # timm's feature wrapper writes "stages_0." for "stages.0.".
    return re.sub(r"_(\d+)(?=\.)", r".\1", name)


def _best_pairing(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, str]:
    """{name in the model: name in the file}, for the pair of prefixes under which most names agree."""
    best: dict[str, str] = {}
    for file_prefix in _FILE_PREFIXES:
        theirs = {_canonical(name.removeprefix(file_prefix)): name for name in weights if name.startswith(file_prefix)}
        for model_prefix in _MODEL_PREFIXES:
            ours = {_canonical(name.removeprefix(model_prefix)): name for name in own if name.startswith(model_prefix)}
            pairing = {ours[name]: theirs[name] for name in ours.keys() & theirs.keys()}
            best = max(best, pairing, key=len)
    return best


def _counted(weights: Mapping[str, object]) -> list[str]:
    return [name for name in weights if not name.endswith("num_batches_tracked")]


def _shortened(names: tuple[str, ...], most: int = 4) -> str:
    text = ", ".join(names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"
