"""The losses, the tiles and the exact sizes of the super-resolution task."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from nala_platform.tasks.super_resolution import SuperResolutionTask
from nala_platform.tasks.tiles import OVERLAP, upscale_tiled, windows
from torch import Tensor, nn

from nala_platform.errors import UserError
from nala_platform.optim import WarmupCosine
from nala_platform.similarity import SuperResolutionScores


class Local(nn.Module):
    """Sees 3 pixels each way: less than the margin."""

    scale = 2

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(3, 12, 7, padding=3)
        self.seen: list[tuple[int, ...]] = []

    def forward(self, image: Tensor) -> Tensor:
        self.seen.append(tuple(image.shape[-2:]))
        return F.pixel_shuffle(self.layer(image), 2)


def task(network: nn.Module, **options) -> SuperResolutionTask:
    return SuperResolutionTask(network, torch.optim.AdamW, WarmupCosine, **options)


@pytest.mark.parametrize(
    ("loss", "formula"), [("l1", lambda d: d.abs()), ("charbonnier", lambda d: (d**2 + 1e-6).sqrt())]
)
def test_the_loss_is_its_formula(loss: str, formula):
    model = task(Local(), loss=loss)
    batch = {"image": torch.rand(2, 3, 6, 5), "target": torch.rand(2, 3, 12, 10)}
    step = model.step(batch)
    with torch.no_grad():
        expected = formula(model.network(batch["image"]) - batch["target"]).mean()
    assert step.loss.item() == pytest.approx(expected.item())
    assert step.count == 2


def test_charbonnier_has_a_gradient_at_zero():
    model = task(Local(), loss="charbonnier")
    image = torch.rand(1, 3, 4, 4)
    model.step({"image": image, "target": model.network(image).detach()}).loss.backward()
    assert torch.isfinite(model.network.layer.weight.grad).all()


@pytest.mark.parametrize("size", [(100, 150), (64, 64), (65, 40), (33, 200)])
def test_tiles_of_a_local_network_are_the_whole(size: tuple[int, int]):
    """U5: no seam, because what a tile's edge spoils is thrown away."""
    network = Local()
    image = torch.rand(2, 3, *size)
    whole = network(image)
    network.seen.clear()
    tiled = upscale_tiled(network, image, scale=2, tile=64)
    assert tiled.shape == whole.shape and all(max(seen) <= 64 for seen in network.seen)
    torch.testing.assert_close(tiled, whole, atol=1e-6, rtol=0)
    if max(size) <= 64:
        assert torch.equal(tiled, whole) and len(network.seen) == 1


@pytest.mark.parametrize("length", range(34, 300, 7))
@pytest.mark.parametrize("tile", [34, 64, 128])
def test_windows_cover_and_overlap(length: int, tile: int):
    found = windows(length, tile)
    assert found[0][0] == 0 and found[-1][1] == length
    assert all(last - first == min(tile, length) for first, last in found)
    assert all(before[1] - after[0] >= OVERLAP for before, after in itertools.pairwise(found))


def test_only_evaluation_and_prediction_are_tiled():
    network = Local()
    model = task(network)
    batch = {"image": torch.rand(1, 3, 50, 50), "target": torch.rand(1, 3, 100, 100), "tile": torch.tensor([40])}
    model.train().step(batch)
    assert network.seen == [(50, 50)]
    model.eval().step(batch)
    assert set(network.seen[1:]) == {(40, 40)}
    out = model.predict({"image": batch["image"], "name": ["a"], "tile": batch["tile"]})
    assert out["image"].shape == (1, 3, 100, 100) and out["image"].dtype == torch.uint8


def test_prediction_is_clamped_and_rounded():
    class Wild(nn.Module):
        scale = 2

        def forward(self, image: Tensor) -> Tensor:
            return torch.tensor([-3.0, 0.0, 0.5, 9.0]).view(1, 1, 2, 2).expand(1, 3, 2, 2)

    pixels = task(Wild()).predict({"image": torch.zeros(1, 3, 1, 1), "name": ["a"]})["image"]
    assert pixels[0, 0].flatten().tolist() == [0, 0, 128, 255]


def test_tiled_inference_of_the_upscaler_stays_near_the_whole():
    """U5 with global attention: a tile's statistics are not the image's, yet within 45 dB."""
    from nala_platform.models.upscaler import Upscaler, bicubic

    torch.manual_seed(0)
    network = Upscaler().eval()
    nn.init.normal_(network.to_pixels.weight, std=0.01)
    image = F.interpolate(torch.rand(1, 3, 12, 18), size=(80, 120), mode="bicubic", antialias=True).clamp(0, 1)
    with torch.no_grad():
        whole, tiled = network(image), upscale_tiled(network, image, scale=2, tile=64)
    assert (whole - bicubic(image, 2)).abs().mean() > 0.005  # the network does something
    scores = SuperResolutionScores(2)
    scores.update(tiled, whole)
    assert float(scores.compute()["psnr_rgb"]) > 45


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: task(Local(), loss="l3"), "model.loss is 'l3'"),
        (lambda: task(nn.Identity()), "Identity has no integer 'scale'"),
        (lambda: upscale_tiled(Local(), torch.zeros(1, 3, 90, 90), scale=2, tile=32), "data.patch.tile is 32"),
    ],
)
def test_bad_settings_are_refused(make, message: str):
    with pytest.raises(UserError, match=message):
        make()


def test_data_and_network_must_agree_on_the_scale():
    class Data:
        scale = 4

    class Trainer:
        datamodule = Data

    model = task(Local())
    model._trainer = Trainer
    with pytest.raises(UserError, match=r"scale 4, but .* 2: add --model.network.scale 4"):
        model.setup("fit")
