"""Which parameters are decayed, and the learning rate at each step."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, ExponentialLR, LinearLR, PolynomialLR, StepLR

from nala_platform.errors import UserError
from nala_platform.models.vision import classifier
from nala_platform.optim import WarmupCosine, WarmupPoly, check_schedule, parameter_groups


def test_only_maps_are_decayed():
    network = classifier(num_classes=3, learn_alpha=True)
    groups = parameter_groups(network)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    decayed, undecayed = ({names[id(p)] for p in group["params"]} for group in groups)
    assert decayed | undecayed == set(names.values())
    assert len(groups[0]["params"]) + len(groups[1]["params"]) == len(names)
    assert groups[1]["weight_decay"] == 0.0
    for name in undecayed:
        assert (
            name.endswith("bias")
            or "norm" in name
            or ".ln." in name
            or "gamma" in name
            or "alpha" in name
            or "proj" in name
        )
    assert any("gamma" in name for name in undecayed)
    assert any("alpha" in name for name in undecayed)
    assert {"head.weight", "layers.0.blocks.0.attn.qkvg.weight", "layers.0.blocks.0.cpe1.weight"} <= decayed


def test_tied_weights_enter_once_and_frozen_ones_not():
    tied = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    tied[2].weight.requires_grad_(False)
    groups = parameter_groups(tied)
    assert [len(group["params"]) for group in groups] == [1, 1]
    assert groups[1]["params"][0] is tied[2].bias


def rates(total: int, warmup: int | float, final: float = 0.1, kind: type = WarmupCosine, **options) -> list[float]:
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=2.0)
    schedule = kind(optimizer, total, warmup=warmup, final=final, **options)
    seen = []
    for _ in range(total + 3):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


@pytest.mark.parametrize("warmup", [4, 0.2])
def test_linear_then_cosine_then_constant(warmup: int | float):
    seen = rates(20, warmup)
    assert seen[:4] == pytest.approx([2.0 * (step + 1) / 5 for step in range(4)])
    cosine = [0.2 + 1.8 * (1 + math.cos(math.pi * (step - 4) / 16)) / 2 for step in range(4, 20)]
    assert seen[4:20] == pytest.approx(cosine)
    assert seen[20:] == pytest.approx([0.2] * 3)
    assert min(seen) > 0


@pytest.mark.parametrize("power", [1.0, 0.9])
def test_linear_then_poly_then_constant(power: float):
    seen = rates(20, 4, kind=WarmupPoly, power=power)
    assert seen[:4] == pytest.approx([2.0 * (step + 1) / 5 for step in range(4)])
    assert seen[4:20] == pytest.approx([0.2 + 1.8 * (1 - (step - 4) / 16) ** power for step in range(4, 20)])
    assert seen[20:] == pytest.approx([0.2] * 3)
    with pytest.raises(UserError, match=r"schedule.power"):
        rates(20, 4, kind=WarmupPoly, power=0.0)


@pytest.mark.parametrize("kind", [WarmupCosine, WarmupPoly])
def test_a_longer_run_goes_on_along_its_own_curve_behind_the_first_warm_up(kind: type):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    short, long = kind(optimizer, 20, warmup=0.2), kind(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0), 40)
    for _ in range(10):
        optimizer.step()
        short.step()
    long.load_state_dict(short.state_dict())
    assert long.warmup_steps == 4
    straight = rates(40, 4, final=0.01 if kind is WarmupCosine else 0.001, kind=kind)
    assert long.optimizer.param_groups[0]["lr"] == pytest.approx(straight[10])


@pytest.mark.parametrize(
    ("warmup", "final", "message"),
    [
        (1.5, 0.1, "write 1"),
        (20, 0.1, "20 warm-up steps, but the run has 20"),
        (-1, 0.1, "-1"),
        (0.1, 0.0, "schedule.final"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(warmup: int | float, final: float, message: str):
    with pytest.raises(UserError, match=message):
        rates(20, warmup, final)


def test_the_state_is_plain():
    schedule = WarmupCosine(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), 10)
    assert all(isinstance(value, int | float | bool | list | type(None)) for value in schedule.state_dict().values())


class OfOptimizer:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


class OfSteps(OfOptimizer):
    def __init__(self, optimizer: torch.optim.Optimizer, n_steps: int) -> None:
        super().__init__(optimizer)
        self.n_steps = n_steps


def build(kind: type, *args: object, **options: object) -> object:
    """As jsonargparse calls a class."""
    return kind(*args, **options)


@pytest.mark.parametrize("kind", [WarmupCosine, WarmupPoly, CosineAnnealingLR, PolynomialLR])
def test_a_schedule_over_the_run_is_accepted_and_ends_with_it(kind: type):
    schedule = partial(build, kind)
    check_schedule(schedule)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    made = schedule(optimizer, 10)
    for _ in range(10):
        optimizer.step()
        made.step()
    assert made.get_last_lr()[0] < 0.02


@pytest.mark.parametrize(
    ("kind", "second"),
    [(ConstantLR, "factor"), (LinearLR, "start_factor"), (StepLR, "step_size"), (ExponentialLR, "gamma")],
)
def test_a_schedule_that_would_take_the_steps_for_another_value_is_refused(kind: type, second: str):
    for schedule in (kind, partial(build, kind, last_epoch=-1)):
        with pytest.raises(UserError, match=f"^model.schedule: {kind.__name__} takes {second} where "):
            check_schedule(schedule)


def test_a_function_and_classes_of_ones_own():
    check_schedule(lambda optimizer, steps: ConstantLR(optimizer))
    check_schedule(OfSteps)
    with pytest.raises(UserError, match="OfOptimizer takes nothing where"):
        check_schedule(OfOptimizer)
