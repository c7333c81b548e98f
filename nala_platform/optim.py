"""Parameter groups and the learning-rate schedule that every task trains with."""

import inspect
import math
import pkgutil
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from nala_platform.errors import UserError

# What a schedule calls the number of optimizer steps of the run, which it is given behind the optimizer: here, in torch
# and in transformers.
STEPS = ("total_steps", "T_max", "total_iters", "num_training_steps")
COMPILED = "_orig_mod."  # what torch.compile(module) puts into names
_USABLE = (
    "name nala_platform.optim.WarmupCosine or WarmupPoly, torch's CosineAnnealingLR or PolynomialLR, or a class of "
    "your own that takes (optimizer, steps, …)"
)
_MODULES = ("nala_platform.optim", "torch.optim.lr_scheduler", "transformers.optimization", "transformers")
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Split the trainable parameters of ``network`` into a decayed and an undecayed group.

    Undecayed are biases, the scales of normalisation layers, every parameter that is a vector in all but name
    (LayerScale ``(1, C, 1, 1)``, learned exponents ``(H,)``) and what the network itself lists in
    ``no_weight_decay()`` (timm's convention). Decaying those shrinks a scale towards zero and regularises nothing.

    Returns:
        ``[{"params": decayed}, {"params": undecayed, "weight_decay": 0.0}]``, empty groups left out. The first group
        takes the optimizer's own ``weight_decay``.

    Examples:
        >>> groups = parameter_groups(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)))
        >>> [len(group["params"]) for group in groups]
        [1, 3]
    """
    listed = _listed_without_decay(network)
    decayed, undecayed = [], []
    for module_name, module in network.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            is_weight_matrix = parameter.ndim > 1 and parameter.numel() > max(parameter.shape)
            full_name = f"{module_name}.{name}" if module_name else name
            plain = is_weight_matrix and not isinstance(module, _NORMS) and full_name not in listed
            (decayed if plain else undecayed).append(parameter)
    # A parameter that two modules share (tied embeddings) must enter the optimizer once.
    groups: list[dict[str, Any]] = [{"params": _once(decayed, set())}]
    groups.append({"params": _once(undecayed, {id(p) for p in decayed}), "weight_decay": 0.0})
    return [group for group in groups if group["params"]]


def _once(parameters: list[nn.Parameter], seen: set[int]) -> list[nn.Parameter]:
    unique = []
    for parameter in parameters:
        if id(parameter) not in seen:
            seen.add(id(parameter))
            unique.append(parameter)
    return unique


def _listed_without_decay(network: nn.Module) -> set[str]:
    listed = set()
    for module_name, module in network.named_modules():
        if hasattr(module, "no_weight_decay"):
            names: Any = module.no_weight_decay
            listed |= {f"{module_name}.{name}" if module_name else name for name in names()}
    return listed


class AccumulatedGradients:
    """The gradients of an optimizer step that is not complete yet, and how many batches they are of.

    Lightning divides each batch's loss by ``accumulate_grad_batches``, also where an epoch ends before so many batches
    are there; `average` makes up for it. In a checkpoint that is written within a step the gradients are kept, those
    of each process.

    Attributes:
        batches: how many have been accumulated since the last step.
    """

    def __init__(self) -> None:
        self.batches = 0
        self._loaded: dict[str, Any] | None = None

    def average(self, optimizer: Optimizer, divisor: int) -> None:
        """Make the sum of gradients, each already divided by ``divisor``, their mean; the next step begins."""
        count, self.batches = self.batches or divisor, 0
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if gradients and count != divisor:
            torch._foreach_mul_(gradients, divisor / count)  # pyright: ignore[reportPrivateImportUsage]

    def state(self, module: nn.Module, divisor: int) -> dict[str, Any]:
        """The gradients of ``module`` by parameter name, on the CPU, their count, and what each was divided by."""
        named = ((name.replace(COMPILED, ""), parameter.grad) for name, parameter in module.named_parameters())
        gradients = {name: gradient.detach().cpu().clone() for name, gradient in named if gradient is not None}
        return {"batches": self.batches, "divisor": divisor, "gradients": gradients}

    def load(self, states: list[dict[str, Any]], rank: int, processes: int) -> None:
        """Take the `state` of process ``rank``; of another number of processes, the mean over those that there were.

        The gradients come into place with `restore`: now the parameters may not be on their device yet.
        """
        state = states[min(rank, len(states) - 1)]
        if len(states) != processes:
            names = state["gradients"]
            mean = {name: sum(one["gradients"][name] for one in states) / len(states) for name in names}
            state = {**state, "gradients": mean}
        self._loaded = state

    def restore(self, module: nn.Module, divisor: int) -> None:
        """Put the loaded gradients in place, if there are any, as if they had been divided by ``divisor``."""
        if self._loaded is None:
            return
        factor = self._loaded["divisor"] / divisor
        for name, parameter in module.named_parameters():
            gradient = self._loaded["gradients"].get(name.replace(COMPILED, ""))
            parameter.grad = None if gradient is None else gradient.to(parameter).mul_(factor)
        self.batches, self._loaded = self._loaded["batches"], None


def warmup_cosine(step: int, *, total_steps: int, warmup_steps: int, final: float) -> float:
    """Factor on the base learning rate at ``step`` (0-based): linear warm-up, then half a cosine down to ``final``.

    ``(step + 1) / (warmup_steps + 1)`` while ``step < warmup_steps``, else
    ``final + (1 - final) * (1 + cos(pi * t)) / 2`` with ``t`` the share of the remaining steps done. Never zero
    before the end, and constant at ``final`` after it. Loshchilov & Hutter, arXiv 1608.03983 (without restarts).

    Examples:
        >>> [round(warmup_cosine(s, total_steps=6, warmup_steps=2, final=0.0), 3) for s in range(7)]
        [0.333, 0.667, 1.0, 0.854, 0.5, 0.146, 0.0]
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))


def warmup_poly(step: int, *, total_steps: int, warmup_steps: int, power: float, final: float) -> float:
    """Factor on the base learning rate at ``step`` (0-based): linear warm-up, then a power of what is left of the run.

    ``(step + 1) / (warmup_steps + 1)`` while ``step < warmup_steps``, else ``final + (1 - final) * (1 - t) ** power``
    with ``t`` the share of the remaining steps done; constant at ``final`` after the end. The "poly" of segmentation
    (Chen et al. 2017, arXiv 1606.00915), there without warm-up.

    Examples:
        >>> [round(warmup_poly(s, total_steps=6, warmup_steps=2, power=1.0, final=0.0), 3) for s in range(7)]
        [0.333, 0.667, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return final + (1.0 - final) * (1.0 - progress) ** power


class _Warmup(LambdaLR):
    """A warm-up and a curve behind it, stepped once an optimizer step.

    A state dict holds numbers alone, so checkpoints load with ``weights_only=True``. It keeps the length of the warm-up
    in steps, but not ``total_steps``: a run that is resumed with another length goes on along the curve of a run of
    that length, after the warm-up that it began with. So there is never a second warm-up, and no rate of zero.
    """

    def __init__(
        self, optimizer: Optimizer, total_steps: int, warmup: int | float, final: float, curve: Callable[..., float]
    ) -> None:
        if not 0.0 < final <= 1.0:
            raise UserError(f"schedule.final must be in (0, 1], got {final}")
        self.warmup_steps = _warmup_steps(warmup, total_steps)

        def factor(step: int) -> float:
            return curve(step, total_steps=total_steps, warmup_steps=self.warmup_steps, final=final)

        super().__init__(optimizer, factor)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on at the stored step, with the stored warm-up, along this schedule's own curve."""
        super().load_state_dict(state_dict)
        self.apply()

    def apply(self) -> None:
        """Set the rates of the present step in the optimizer; after `step` they are already."""
        factor = self.lr_lambdas[0](self.last_epoch)
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base * factor
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]


class WarmupCosine(_Warmup):
    """Linear warm-up, then cosine decay (see `warmup_cosine`).

    Args:
        optimizer: whose base learning rates are scaled.
        total_steps: optimizer steps of the whole run; the trainer passes its estimate.
        warmup: an ``int`` counts steps, a ``float`` in [0, 1) is a share of ``total_steps``.
        final: the factor on the learning rate at the end, in (0, 1].

    Raises:
        UserError: ``warmup`` or ``final`` out of range, or a warm-up that fills the whole run.
    """

    def __init__(self, optimizer: Optimizer, total_steps: int, warmup: int | float = 0.1, final: float = 0.01) -> None:
        super().__init__(optimizer, total_steps, warmup, final, warmup_cosine)


class WarmupPoly(_Warmup):
    """Linear warm-up, then polynomial decay (see `warmup_poly`).

    Args:
        optimizer: whose base learning rates are scaled.
        total_steps: optimizer steps of the whole run; the trainer passes its estimate.
        warmup: an ``int`` counts steps, a ``float`` in [0, 1) is a share of ``total_steps``.
        power: of the decay, above 0; 1 is a straight line.
        final: the factor on the learning rate at the end, in (0, 1].

    Raises:
        UserError: ``warmup``, ``power`` or ``final`` out of range, or a warm-up that fills the whole run.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        warmup: int | float = 0.1,
        power: float = 1.0,
        final: float = 0.001,
    ) -> None:
        if power <= 0:
            raise UserError(f"schedule.power must be above 0, got {power}")
        super().__init__(optimizer, total_steps, warmup, final, partial(warmup_poly, power=power))


def check_schedule(schedule: Callable[..., Any]) -> None:
    """Refuse a class whose second argument is not the number of steps: it would take that for another value.

    Args:
        schedule: a class, or a `partial` that makes one, as the command line gives it; a function is let pass. A class
            of torch or transformers must name the steps as they do (`STEPS`); one of the user's may name them at will.

    Raises:
        UserError: it cannot be built from the optimizer and the number of steps of the run.
    """
    kind = schedule.args[-1] if isinstance(schedule, partial) and schedule.args else schedule
    if not isinstance(kind, type):
        return
    second = [*inspect.signature(kind).parameters, "nothing", "nothing"][1]
    foreign = kind.__module__.partition(".")[0] in ("torch", "transformers")
    if second == "nothing" or (foreign and second not in STEPS):
        given = "where it is given the number of steps of the run"
        raise UserError(f"model.schedule: {kind.__name__} takes {second} {given}: {_USABLE}")


def schedule_refusal(name: str) -> str | None:
    """Why the class that ``name`` means cannot be a schedule; None: it can, or there is no such class.

    Args:
        name: a class path, or a class of torch, transformers or this module by its short name.

    Examples:
        >>> schedule_refusal("StepLR").partition(" where ")[0], schedule_refusal("CosineAnnealingLR")
        ('model.schedule: StepLR takes step_size', None)
    """
    if (kind := _schedule_of(name)) is None:
        return None
    if not isinstance(kind, type):
        return f"model.schedule: {name} is no class: {_USABLE}"
    try:
        check_schedule(kind)
    except UserError as error:
        return str(error)
    return None


def _schedule_of(name: str) -> Any:
    names = [name] if "." in name else [f"{module}.{name}" for module in _MODULES]
    for path in names:
        try:
            return pkgutil.resolve_name(path)
        except (ImportError, AttributeError, ValueError):  # not there
            continue
    return None


def _warmup_steps(warmup: int | float, total_steps: int) -> int:
    if isinstance(warmup, float) and not 0.0 <= warmup < 1.0:
        raise UserError(
            f"schedule.warmup = {warmup} is a float, so it is a share of the run and must be in [0, 1); "
            f"write {int(warmup)} (an int) for that many steps"
        )
    steps = round(warmup * total_steps) if isinstance(warmup, float) else warmup
    if steps < 0 or steps >= total_steps:
        raise UserError(
            f"schedule.warmup = {warmup} gives {steps} warm-up steps, but the run has {total_steps}: "
            "lower schedule.warmup or raise trainer.max_epochs"
        )
    return steps
