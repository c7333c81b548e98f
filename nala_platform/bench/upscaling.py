"""What ``nala bench memory`` measures: a training step and an inference of the upscaler on a square picture."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nala_platform.bench.contestants import MATERIALISED
from nala_platform.bench.switch import computed_as
from nala_platform.models.upscaler import SIZES, Upscaler

_SAVED_TOKEN, _PASSING_TOKEN = 80.0, 30.0
_SAVED_SCORES, _ALIVE_SCORES = 1.2, 3.5


class Upscaling(NamedTuple):
    """One contestant at one size. Picklable, for a process of its own."""

    contestant: str
    """nala/<backend>, softmax, softmax-materialised, or another mechanism"""
    size: str
    scale: int
    side: int
    device: str
    is_training: bool

    @property
    def tokens(self) -> int:
        """Pixels of the small picture: each is a token of every layer."""
        return self.side**2

    def prepare(self) -> Callable[[], object]:
        """Make network, optimizer and pictures; what is given back does one step, or one inference."""
        torch.manual_seed(0)
        mechanism = self.contestant.partition("/")[0].removesuffix("-materialised")
        network = Upscaler(self.size, self.scale, attention=mechanism).to(self.device)
        image = torch.rand(1, 3, self.side, self.side, device=self.device)
        if not self.is_training:
            return partial(_infer, self.contestant, network.eval(), image)
        large = self.scale * self.side
        target = torch.rand(1, 3, large, large, device=self.device)
        return partial(_train, self.contestant, network, torch.optim.AdamW(network.parameters()), image, target)

    def guessed_bytes(self) -> float:
        """Roughly what a run needs, where no smaller size has been measured yet; rather too much."""
        row = SIZES[self.size]
        channel = 4 * self.tokens * row.dim
        layers = row.depth if self.is_training else 0
        features = channel * (_SAVED_TOKEN * layers + _PASSING_TOKEN)
        if self.contestant != MATERIALISED:
            return features
        return features + 4 * row.heads * self.tokens**2 * (_SAVED_SCORES * layers + _ALIVE_SCORES)


def _infer(contestant: str, network: Upscaler, image: Tensor) -> Tensor:
    with computed_as(contestant), torch.no_grad():
        return network(image)


def _train(contestant: str, network: Upscaler, optimizer: Any, image: Tensor, target: Tensor) -> float:
    with computed_as(contestant):
        loss = (network(image) - target).abs().mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
