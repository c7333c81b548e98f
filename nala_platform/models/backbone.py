"""The one place where a network's backbone is made: NaLaFormer or any timm model, with the same options."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

import timm
from torch import nn

from nala_platform.errors import UserError
from nala_platform.models.checkpoint import load_backbone
from nala_platform.models.variants import ENTRIES
from nala_platform.paths import StrPath

_OWN = {entry.__name__: entry for entry in ENTRIES}


def create_backbone(
    name: str,
    role: Mapping[str, Any],
    *,
    drop_path_rate: float | None = None,
    pretrained: bool = False,
    checkpoint_path: StrPath | None = None,
    timm_options: dict[str, Any] | None = None,
    **options: Any,
) -> nn.Module:
    """A timm model in the given role, with NaLa's options where it has them.

    Args:
        name: a timm model name, NaLaFormer's among them.
        role: what the caller makes of it, in timm's words: ``{"num_classes": 10}``, ``{"features_only": True}``.
        drop_path_rate: stochastic depth of the last block; None is the model's own.
        pretrained: timm's published weights (downloaded by timm).
        checkpoint_path: file to load from; prints how many tensors matched (see `load_backbone`).
        timm_options: anything else that ``timm.create_model`` takes for this model, such as ``{"img_size": 64}``.
        options: those of `nala_options`.

    Raises:
        UserError: an unknown name, an option that the model does not have or that is out of range, both sources of
            weights, a file that does not fit.
    """
    if pretrained and checkpoint_path is not None:
        raise UserError("pretrained and checkpoint_path are two sources of weights: give only one of them")
    if drop_path_rate is not None and not 0.0 <= drop_path_rate < 1.0:
        raise UserError(f"drop_path_rate is {drop_path_rate}: it must be in [0, 1)")
    if role.get("in_chans", 1) < 1:
        raise UserError(f"in_chans is {role['in_chans']}: it must be 1 or more")
    own = nala_options(**options)
    make = _own(name, pretrained) if name in _OWN else _foreign(name, pretrained, own)
    model = _made(name, make, {**own, **_given(drop_path_rate=drop_path_rate), **(timm_options or {}), **role})
    if checkpoint_path is not None:
        print(f"{name} from {checkpoint_path}: {load_backbone(model, checkpoint_path)}")
    return model


def nala_options(
    *,
    attention: str | None = None,
    stage_attention: tuple[str, str, str, str] | None = None,
    alpha_range: tuple[float, float] | None = None,
    alpha_gate: str | None = None,
    direction: str | None = None,
    learn_alpha: bool | None = None,
) -> dict[str, Any]:
    """The options that NaLaFormer alone has, without those left at None, the model's own default.

    Args:
        attention: one mechanism for all stages: nala, softmax, linear or relu.
        stage_attention: a mechanism for each of the four stages.
        alpha_range: low and high of NaLa's query exponent.
        alpha_gate: tanh or sigmoid.
        direction: split or cosine.
        learn_alpha: learn low and high for each head of the NaLa stages.

    Examples:
        >>> nala_options(attention="relu")
        {'attention': 'relu'}
    """
    return _given(
        attention=attention,
        stage_attention=stage_attention,
        alpha_range=alpha_range,
        alpha_gate=alpha_gate,
        direction=direction,
        learn_alpha=learn_alpha,
    )


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _made(name: str, make: Callable[..., nn.Module], options: Mapping[str, Any]) -> nn.Module:
    try:
        return make(**options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise UserError(f"backbone {name} does not take an option it was given: {error}") from error


def _own(name: str, pretrained: bool) -> Callable[..., nn.Module]:
    if pretrained:
        raise UserError(f"timm has no weights of {name}: take pretrained away, or give checkpoint_path")
    return _OWN[name]


def _foreign(name: str, pretrained: bool, foreign: Mapping[str, Any]) -> Callable[..., nn.Module]:
    if foreign:
        raise UserError(
            f"backbone {name} has no option {', '.join(sorted(foreign))}: take it away, or use one of {', '.join(_OWN)}"
        )
    known = timm.list_models()
    if name.split(".")[0] not in known and not name.startswith(("hf-hub:", "local-dir:")):
        near = get_close_matches(name, [*_OWN, *known], n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else "; timm.list_models() lists the names"
        raise UserError(f"backbone {name!r} is not a timm model{hint}")
    return partial(timm.create_model, name, pretrained=pretrained)
