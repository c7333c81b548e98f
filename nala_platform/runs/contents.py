"""What a checkpoint must hold to train on from it, so that nothing is left out silently."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from nala_platform.errors import UserError

# A type (or several), the keys of a dict with what is under each, or a list of one: what each of its entries is.
Template = Any
_NONE = type(None)

WEIGHTS: Template = {"state_dict": dict}
_LOOPS = ("epoch_progress", "epoch_loop.state_dict", "epoch_loop.batch_progress", "epoch_loop.val_loop.batch_progress")
TRAINING: Template = {
    "epoch": int,
    "global_step": int,
    "loops": {"fit_loop": dict.fromkeys(_LOOPS, dict)},
    "optimizer_states": [{"state": dict, "param_groups": list}],
    "lr_schedulers": [dict],
}
EXACT: Template = {
    "nala": {
        "position": {"epoch": int, "batch": int},
        "global_batch": (int, _NONE),
        "random": [{"python": (list, tuple), "numpy": list, "torch": Tensor}],
        "log": (dict, _NONE),
    },
    "train_loss": [list],
}
AVERAGE: Template = {"current_model_state": dict, "averaging_state": {"n_averaged": Tensor}}


def refuse_incomplete(
    checkpoint: Mapping[str, Any],
    path: str | Path | None,
    *,
    trains: bool,
    averages: bool = False,
    callbacks: Sequence[str] = (),
) -> None:
    """Refuse a checkpoint that lacks an entry, or has something else in its place.

    One that another program wrote, known by having no entry ``nala``, needs what Lightning saves and no more.

    Args:
        checkpoint: as loaded.
        path: of the file, for the message.
        trains: whether training goes on from it; else its weights are all that is wanted.
        averages: whether the training keeps an average of the weights.
        callbacks: keys of the callbacks of this platform that have a state.

    Raises:
        UserError: the message names the file and the entry.
    """
    templates = [WEIGHTS]
    if trains:
        templates.append(TRAINING)
        if "nala" in checkpoint:
            templates += [EXACT, {"callbacks": dict.fromkeys(callbacks, dict)}] + [AVERAGE] * averages
    name = path or "the checkpoint"
    for template in templates:
        if found := difference(checkpoint, template):
            raise UserError(
                f"{name} is incomplete: {found}: give another checkpoint of the run, such as "
                "--ckpt_path RUN/checkpoints/previous.ckpt"
            )
    for entry in ("state_dict", "current_model_state"):
        for key, value in checkpoint.get(entry, {}).items():
            if not isinstance(value, Tensor):
                raise UserError(f"{name} is damaged: {entry}/{key} is a {type(value).__name__}, not a tensor")
    if trains and not averages and "current_model_state" in checkpoint:
        raise UserError(
            f"{name} holds an average of the weights (current_model_state), and this run keeps none: give --ema.decay "
            "as it was"
        )


def difference(value: Any, template: Template, path: str = "") -> str | None:
    """Where ``value`` is not what ``template`` says; None: nowhere.

    Examples:
        >>> difference({"nala": {"random": [1]}}, {"nala": {"random": [str]}})
        'nala/random/0 is an int, not a str'
        >>> difference({}, {"nala": dict})
        'nala is missing'
    """
    kinds = template if isinstance(template, tuple) else (template if isinstance(template, type) else type(template),)
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds if kind is not _NONE)
        return f"{path} is {_article(type(value).__name__)}, not {_article(wanted)}"
    below = f"{path}/" if path else ""
    if isinstance(template, list):
        pairs = [(str(place), entry, template[0]) for place, entry in enumerate(value)]
    elif isinstance(template, dict):
        missing = next((key for key in template if key not in value), None)
        if missing is not None:
            return f"{below}{missing} is missing"
        pairs = [(key, value[key], entry) for key, entry in template.items()]
    else:
        return None
    return next((found for key, entry, kind in pairs if (found := difference(entry, kind, f"{below}{key}"))), None)


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
