"""Enlarged pictures: beside the truth after a test, as files after a prediction.

Shapes: B batch, H W pixels of the small image, S scale.
"""

import math
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from nala_platform.callbacks.files import take_files
from nala_platform.callbacks.pictures import NO_TICKS
from nala_platform.paths import shown
from nala_platform.runs import save_figure
from nala_platform.similarity import SuperResolutionScores

ERROR_RANGE = 48  # of 255; above it the error picture is white


class Shown(NamedTuple):
    """A window of a test image, each picture ``(H, W, 3)`` uint8, and PSNR on Y of the whole images."""

    name: str
    bicubic: np.ndarray
    ours: np.ndarray
    truth: np.ndarray
    psnr_bicubic: float
    psnr_ours: float


class SuperResolutionPictures(Callback):
    """Writes ``predictions.png`` after a test: bicubic, this run, truth and error, a row an image.

    Of each image the window is shown where the bicubic enlargement is farthest from the truth. The error is the mean
    absolute difference of the channels, black for none.

    Args:
        count: how many images, the first ones; of several test sets the first ones of each.
        window: edge of the window, in large pixels.
    """

    def __init__(self, count: int = 6, window: int = 144) -> None:
        super().__init__()
        self.count, self.window = count, window
        self._shown: list[Shown] = []
        self._kept = Counter[int]()  # of each test set

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Keep the windows of a batch."""
        if not trainer.is_global_zero:
            return
        sets: int = max(1, len(getattr(getattr(trainer, "datamodule", None), "test_sets", ())))
        parts = batch["test_set"].tolist() if "test_set" in batch else [0] * len(outputs)
        rows = zip(parts, batch["name"], batch["image"], outputs, batch["target"], strict=True)
        for part, name, small, ours, truth in rows:
            if self._kept[part] < math.ceil(self.count / sets):
                self._kept[part] += 1
                self._shown.append(self._show(name, small, ours, truth))

    def _show(self, name: str, small_3HW: Tensor, ours: Tensor, truth: Tensor) -> Shown:
        scale = truth.shape[-1] // small_3HW.shape[-1]
        bicubic = F.interpolate(small_3HW[None].float(), scale_factor=scale, mode="bicubic", antialias=True)[0]
        error_HW = (bicubic - truth).abs().mean(0)
        window = min(self.window, *error_HW.shape)
        sums = F.avg_pool2d(error_HW[None], window, stride=8)[0]
        row, column = divmod(int(sums.argmax()), sums.shape[1])
        part = (..., slice(8 * row, 8 * row + window), slice(8 * column, 8 * column + window))
        shown = [eight_bit(image[part]) for image in (bicubic, ours, truth)]
        return Shown(name, shown[0], shown[1], shown[2], _psnr(bicubic, truth, scale), _psnr(ours, truth, scale))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw what was kept."""
        if not trainer.is_global_zero or not self._shown:
            return
        shown, self._shown, self._kept = self._shown, [], Counter()
        figure = Figure(figsize=(9.6, 2.55 * len(shown) + 0.5), layout="constrained")
        grid = figure.subplots(len(shown), 4, squeeze=False, subplot_kw=NO_TICKS)
        for line, row in zip(grid, shown, strict=True):
            for axes, picture in zip(line, (row.bicubic, row.ours, row.truth), strict=False):
                axes.imshow(picture, interpolation="nearest")
            error_HW = np.abs(row.ours.astype(np.float64) - row.truth).mean(-1)
            scale = line[3].imshow(error_HW, cmap="inferno", vmin=0, vmax=ERROR_RANGE, interpolation="nearest")
            titles = (f"bicubic, {row.psnr_bicubic:.2f} dB", f"this run, {row.psnr_ours:.2f} dB", row.name, "error")
            for axes, title in zip(line, titles, strict=True):
                axes.set_title(title, fontsize=9)
                axes.axis("off")
            figure.colorbar(scale, ax=line[3], fraction=0.05)
        figure.suptitle("PSNR on Y of the whole images", fontsize=9)
        save_figure(figure, Path(trainer.default_root_dir) / "predictions.png", dpi=130)


class SuperResolutionPNG(Callback):
    """Writes ``<stem>_x<S>.png`` of each image that ``predict`` enlarges; `take_files` tells where."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Write the pictures of a batch."""
        for name, small, image in zip(outputs["name"], batch["image"], outputs["image"], strict=True):
            scale = image.shape[-1] // small.shape[-1]
            [path] = take_files(Path(trainer.default_root_dir), name, (f"_x{scale}.png",))
            Image.fromarray(image.permute(1, 2, 0).cpu().numpy()).save(path)
            self._count += 1

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say where the result is."""
        if trainer.is_global_zero:
            print(f"predictions: {shown(trainer.default_root_dir)} ({self._count} enlarged images)")


def eight_bit(image_3HW: Tensor) -> np.ndarray:
    """``(H, W, 3)`` uint8 of an image in 0..1, clipped and rounded."""
    return (image_3HW.float().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()


def _psnr(image: Tensor, truth: Tensor, scale: int) -> float:
    scores = SuperResolutionScores(scale, alone=True).to(truth.device)
    scores.update(image[None], truth[None])
    return float(scores.compute()["psnr_y"])
