"""Pictures of predictions beside the truth.

Shapes: B batch, C channels or classes, H W pixels.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from nala_platform.runs import save_figure

LEGEND = 20  # classes that a legend has room for
NO_TICKS = {"xticks": [], "yticks": []}  # laying out ticks that nobody sees takes half of the time of a picture
Palette = tuple[tuple[int, int, int], ...]


def displayable(image_CHW: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> np.ndarray:
    """Undo the normalisation of an image: ``(H, W, 3)`` uint8, values clipped to 0..255."""
    pixels_CHW = image_CHW.float().cpu() * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
    return (pixels_CHW.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()


def colourise(mask_HW: np.ndarray, palette: Palette) -> np.ndarray:
    """Class indices to colours ``(H, W, 3)`` uint8; `ignored_colour` where the index is of no class."""
    colour_C3 = np.array([*palette, ignored_colour(palette)], np.uint8)
    is_class_HW = (mask_HW >= 0) & (mask_HW < len(palette))
    return colour_C3[np.where(is_class_HW, mask_HW, len(palette))]


def ignored_colour(palette: Palette) -> tuple[int, int, int]:
    """Black, or white where a class is black (VOC's background)."""
    return (255, 255, 255) if (0, 0, 0) in palette else (0, 0, 0)


class ClassificationPictures(Callback):
    """Writes ``predictions.png`` after a test: images with the predicted class, red with the true one when wrong.

    Args:
        count: how many images, wrong ones first.
    """

    def __init__(self, count: int = 24) -> None:
        super().__init__()
        self.count = count
        self._right: list[tuple[np.ndarray, int, int]] = []
        self._wrong: list[tuple[np.ndarray, int, int]] = []

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Keep a few samples of the batch."""
        if not trainer.is_global_zero:
            return
        data: Any = getattr(trainer, "datamodule")  # noqa: B009 - not in the Trainer's type
        for image, logits, target in zip(batch["image"], outputs, batch["target"], strict=True):
            predicted, true = int(logits.argmax()), int(target)
            kept = self._right if predicted == true else self._wrong
            if len(kept) < self.count:
                kept.append((displayable(image, data.mean, data.std), predicted, true))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw what was kept: half of the places for mistakes, as far as there are any."""
        if not trainer.is_global_zero or not (self._right or self._wrong):
            return
        data: Any = getattr(trainer, "datamodule")  # noqa: B009
        wrong = self._wrong[: max(self.count // 2, self.count - len(self._right))]
        samples = wrong + self._right[: self.count - len(wrong)]
        self._right, self._wrong = [], []
        columns = min(8, len(samples))
        lines = -(-len(samples) // columns)
        figure = Figure(figsize=(1.5 * columns, 1.75 * lines), layout="constrained")
        for axes, (image, predicted, true) in zip(
            figure.subplots(lines, columns, squeeze=False, subplot_kw=NO_TICKS).flat, samples, strict=False
        ):
            axes.imshow(image, interpolation="nearest")
            names = data.class_names
            title = names[predicted] if predicted == true else f"{names[predicted]}\nnot {names[true]}"
            axes.set_title(title, fontsize=8, color="black" if predicted == true else "crimson")
        for axes in figure.axes:
            axes.axis("off")
        save_figure(figure, Path(trainer.default_root_dir) / "predictions.png")


def _commonest(samples: list[tuple[np.ndarray, np.ndarray, np.ndarray]], classes: int) -> list[int]:
    """The classes in truth or prediction, ascending; of more than `LEGEND` those with the most pixels."""
    shown = np.concatenate([mask.ravel() for _, *masks in samples for mask in masks])
    count_C = np.bincount(shown[(shown >= 0) & (shown < classes)], minlength=classes)
    ranked = np.argsort(-count_C, kind="stable")[: min(LEGEND, int((count_C > 0).sum()))]
    return sorted(ranked.tolist())


class SegmentationPictures(Callback):
    """Writes ``predictions.png`` after a test: image, truth, prediction and mistakes, a row a sample, with a legend.

    The legend names the classes that are to be seen.

    Args:
        count: how many samples: the first few of each batch, as many of each as it takes.
    """

    def __init__(self, count: int = 6) -> None:
        super().__init__()
        self.count = count
        self._samples: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Keep the first samples of the batch."""
        if not trainer.is_global_zero or len(self._samples) >= self.count:
            return
        data: Any = getattr(trainer, "datamodule")  # noqa: B009
        batches = trainer.num_test_batches[0]
        each = 1 if math.isinf(batches) else math.ceil(self.count / batches)
        for image, mask, target in list(zip(batch["image"], outputs, batch["target"], strict=True))[:each]:
            truth, predicted = target.cpu().numpy().astype(np.int64), mask.cpu().numpy()
            self._samples.append((displayable(image, data.mean, data.std), truth, predicted))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw what was kept."""
        if not trainer.is_global_zero or not self._samples:
            return
        data: Any = getattr(trainer, "datamodule")  # noqa: B009
        samples, self._samples = self._samples[: self.count], []
        heights = [2.1 * min(1.6, max(0.3, image.shape[0] / image.shape[1])) for image, *_ in samples]
        figure = Figure(figsize=(8.4, sum(heights) + 0.6), layout="constrained")
        grid = figure.subplots(len(samples), 4, squeeze=False, height_ratios=heights, subplot_kw=NO_TICKS)
        for line, (image, truth, predicted) in zip(grid, samples, strict=True):
            ignored = truth == data.ignore_index
            shown = np.where(ignored, -1, truth)  # an ignored label may be a class's number too
            wrong = np.where(((truth != predicted) & ~ignored)[..., None], (220, 20, 60), image // 3 + 100)
            pictures = (
                image,
                colourise(shown, data.palette),
                colourise(predicted, data.palette),
                wrong.astype(np.uint8),
            )
            for axes, picture in zip(line, pictures, strict=True):
                axes.imshow(picture, interpolation="nearest")
                axes.axis("off")
        for axes, title in zip(grid[0], ("image", "truth", "prediction", "mistakes"), strict=True):
            axes.set_title(title, fontsize=10)
        named = [(data.palette[k], data.class_names[k]) for k in _commonest(samples, len(data.palette))]
        handles = [
            Patch(facecolor=tuple(channel / 255 for channel in colour), edgecolor="grey", linewidth=0.4, label=name)
            for colour, name in [*named, (ignored_colour(data.palette), "ignored")]
        ]
        figure.legend(
            handles=handles, loc="outside lower center", ncols=min(7, len(handles)), frameon=False, fontsize=9
        )
        save_figure(figure, Path(trainer.default_root_dir) / "predictions.png")
