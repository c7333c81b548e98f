"""The losses, the tiles and the exact sizes of the super-resolution task."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from nala_platform.tasks.super_resolution import SuperResolutionTask
from nala_platform.tasks.tiles import OVERLAP, upscale_tiled, windows
from PIL import Image
from torch import Tensor, nn

from nala_platform.data.images.pair_folder import Folders, PairFolderData
from nala_platform.data.images.pairs import Patch
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


def picture_tree(root: Path, scale: int) -> None:
    """DIV2K of two pictures and two test sets, one with small pictures that are not bicubic reductions."""
    draw = np.random.default_rng(0)
    smooth = Image.fromarray(draw.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((96, 72))
    for large, small, image in (
        ("DIV2K_train_HR/0001.png", f"DIV2K_train_LR_bicubic/X{scale}/0001x{scale}.png", smooth),
        ("DIV2K_valid_HR/0801.png", f"DIV2K_valid_LR_bicubic/X{scale}/0801x{scale}.png", smooth.rotate(180)),
        ("bench/Set5/GTmod12/a.png", f"bench/Set5/LRbicx{scale}/a.png", smooth.crop((0, 0, 60, 60))),
        ("bench/Set5/GTmod12/b.png", f"bench/Set5/LRbicx{scale}/b.png", smooth.crop((24, 12, 84, 60))),
        ("bench/Urban100/img_001.png", "", smooth.crop((0, 0, 49, 50))),
    ):
        for name in filter(None, (large, small)):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(root / large)
        if small:
            nearest = image.resize((image.width // scale, image.height // scale), Image.Resampling.BOX)
            nearest.save(root / small)


class PillowBicubic(nn.Module):
    """Enlarges as Pillow does, in 8 bits: what it gives is known from Pillow alone."""

    def __init__(self, scale: int) -> None:
        super().__init__()
        self.scale, self.weight = scale, nn.Parameter(torch.zeros(1, 1))

    def forward(self, image: Tensor) -> Tensor:
        pixels = (image * 255).round().byte().permute(0, 2, 3, 1).numpy()
        size = (self.scale * image.shape[3], self.scale * image.shape[2])
        large = np.stack([np.asarray(Image.fromarray(one).resize(size, Image.Resampling.BICUBIC)) for one in pixels])
        return torch.from_numpy(large).permute(0, 3, 1, 2) / 255 + 0 * self.weight


def y_psnr(one: np.ndarray, other: np.ndarray, border: int) -> float:
    factors = np.array([65.481, 128.553, 24.966]) / 255
    inner = slice(border, -border)
    error = (one[inner, inner].astype(float) - other[inner, inner].astype(float)) @ factors
    return float(10 * np.log10(255**2 / np.mean(error**2)))


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_training_and_several_test_sets_through_the_trainer(scale: int, tmp_path: Path):
    """A row each, equal to what Pillow and numpy say; the first without its name too; no mean over sets."""
    picture_tree(tmp_path, scale)
    folders = Folders(layout="div2k", test_sets=str(tmp_path / "bench"), baseline="bicubic")
    data = PairFolderData(str(tmp_path), folders=folders, scale=scale, patch=Patch(size=8, repeats=2), batch_size=1)
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    trainer = Trainer(accelerator="cpu", max_steps=2, max_epochs=1, use_distributed_sampler=False, **quiet)
    model = task(PillowBicubic(scale))
    trainer.fit(model, datamodule=data)
    assert trainer.global_step == 2 and torch.isfinite(trainer.callback_metrics["val/psnr_y"])
    trainer.test(model, datamodule=data, verbose=False)
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}

    def by_hand(large_path: Path, small_path: Path | None) -> float:
        large = Image.open(large_path)
        large = large.crop((0, 0, large.width // scale * scale, large.height // scale * scale))
        size = (large.width // scale, large.height // scale)
        small = Image.open(small_path) if small_path else large.resize(size, Image.Resampling.BICUBIC)
        return y_psnr(np.asarray(small.resize(large.size, Image.Resampling.BICUBIC)), np.asarray(large), scale)

    bench = tmp_path / "bench"
    set5 = np.mean([by_hand(bench / f"Set5/GTmod12/{n}.png", bench / f"Set5/LRbicx{scale}/{n}.png") for n in "ab"])
    assert found["test/set5/psnr_y"] == found["test/psnr_y"] == pytest.approx(set5, abs=2e-5)  # logged in float32
    assert found["test/urban100/psnr_y"] == pytest.approx(by_hand(bench / "Urban100/img_001.png", None), abs=2e-5)
    rows = {name.split("/")[1] for name in found if name.count("/") == 2}
    assert rows == {"set5", "urban100"}
    bicubic = data.baselines()["bicubic"]
    assert bicubic["set5/psnr_y"] == pytest.approx(found["test/set5/psnr_y"], abs=2e-5)
    assert bicubic["urban100/ssim_y"] == pytest.approx(found["test/urban100/ssim_y"], abs=1e-6)
