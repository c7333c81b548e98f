"""Activations and norms by the names that timm has for them."""

from collections.abc import Callable
from typing import Any

from timm.layers.create_act import get_act_layer
from timm.layers.create_norm import get_norm_layer
from torch import nn

from nala_platform.errors import UserError


def activation(given: str | Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """What makes an activation.

    Args:
        given: a name of timm's, such as "relu", or a class.

    Raises:
        UserError: no such name.
    """
    return _looked_up(get_act_layer, given, option="act_layer")


def last_axis_norm(given: str | Callable[[int], nn.Module] | None) -> Callable[[int], nn.Module] | None:
    """What makes a norm over the last axis from its size, where the blocks hold their channels.

    Args:
        given: a name of timm's, such as "rmsnorm", or a class; None stays None.

    Raises:
        UserError: no such name, or a norm over another axis.
    """
    if given is None:
        return None
    make = _looked_up(get_norm_layer, given, option="norm_layer")
    norm = make(4)
    if isinstance(norm, nn.modules.batchnorm._NormBase | nn.GroupNorm) or type(norm).__name__.endswith("2d"):
        raise UserError(
            f"norm_layer={given!r} normalises maps (B, C, Y, X), the blocks of NaLaFormer need a norm over the last "
            "axis: layernorm, rmsnorm, or a class"
        )
    return make


def _looked_up(look: Callable[[Any], Any], given: Any, *, option: str) -> Any:
    try:
        made = look(given)
    except (KeyError, AssertionError):  # timm's own for an unknown name
        made = None
    if made is None:
        raise UserError(f"{option}={given!r} is not a layer of timm's: give the name of one, or a class")
    return made
