"""Some training samples with their labels, as a person should have seen them once.

Shapes: H W pixels.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from nala_platform.check.walk import Facts
from nala_platform.data.base import DataModule
from nala_platform.data.loader import Sample
from nala_platform.data.order import Draw
from nala_platform.errors import UserError
from nala_platform.runs import save_figure

ROWS, COLUMNS = 12, 8  # at most so many classes, and pictures of each
SCENES = 6  # samples of the other tasks


class Sampler:
    """Keeps some good training samples of each class, all equally likely; where there are no classes, of all.

    Args:
        seed: of the choice.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._seen: dict[int, int] = {}
        self.kept: dict[int, list[int]] = {}

    def add(self, split: str, index: int, facts: Facts) -> None:
        """Consider a sample."""
        if split != "train" or facts.problem is not None:
            return
        label = -1 if facts.label is None else facts.label
        kept, seen = self.kept.setdefault(label, []), self._seen.get(label, 0)
        self._seen[label] = seen + 1
        if len(kept) < COLUMNS:
            kept.append(index)
        elif (place := self._random.randrange(seen + 1)) < COLUMNS:
            kept[place] = index


def draw(data: DataModule, sampler: Sampler, path: Path) -> None:
    """Write the picture: a row a class; or image, mask and both; or small and large; or pieces of text.

    Raises:
        UserError: no sample can be shown.
    """
    if not sampler.kept:
        raise UserError("--picture: there is no good training sample to be shown")
    items: Any = data.whole("train")
    samples = {
        label: [items[Draw(index, epoch=0)] for index in sorted(kept)] for label, kept in _chosen(sampler.kept).items()
    }
    first = next(iter(samples.values()))
    if -1 not in samples:
        figure = _classes(data, samples)
    elif "tokens" in first[0]:
        figure = _texts(data, first)
    elif first[0]["target"].dtype == torch.int64:
        figure = _masks(data, first[:SCENES])
    else:
        figure = _pairs(data, first[:SCENES])
    save_figure(figure, path)


def _chosen(kept: dict[int, list[int]]) -> dict[int, list[int]]:
    labels = sorted(kept)
    steps = np.linspace(0, len(labels) - 1, min(ROWS, len(labels))).round().astype(int)
    return {labels[step]: kept[labels[step]] for step in steps}


def _classes(data: DataModule, samples: dict[int, list[Sample]]) -> Figure:
    figure = Figure(figsize=(1.3 * COLUMNS + 1, 1.4 * len(samples)), layout="constrained")
    grid = figure.subplots(len(samples), COLUMNS, squeeze=False)
    for line, (label, row) in zip(grid, samples.items(), strict=True):
        for axes, sample in zip(line, row, strict=False):
            _show(axes, _pixels(sample["image"], data))
        for axes in line:
            axes.axis("off")
        line[0].set_title(f"{label}: {data.class_names[label]}", fontsize=9, loc="left")
    return figure


def _masks(data: Any, samples: list[Sample]) -> Figure:
    figure = Figure(figsize=(8.4, 2.4 * len(samples) + 0.8), layout="constrained")
    colour_C3 = np.array([*data.palette, (0, 0, 0)], np.uint8)
    seen: set[int] = set()
    for line, sample in zip(figure.subplots(len(samples), 3, squeeze=False), samples, strict=True):
        image_HW3, label_HW = _pixels(sample["image"], data), sample["target"].numpy()
        ignored_HW = label_HW == data.ignore_index
        seen |= set(np.unique(label_HW[~ignored_HW]).tolist())
        mask_HW3 = colour_C3[np.where(ignored_HW, len(colour_C3) - 1, label_HW)]
        over_HW3 = np.where(ignored_HW[..., None], image_HW3, image_HW3 // 2 + mask_HW3 // 2)
        for axes, picture in zip(line, (image_HW3, mask_HW3, over_HW3), strict=True):
            _show(axes, picture)
        line[0].set_title(sample["name"], fontsize=8, loc="left")
    handles = [
        Patch(facecolor=tuple(colour_C3[label] / 255), label=data.class_names[label]) for label in sorted(seen)[:20]
    ]
    handles.append(Patch(facecolor="black", label="ignored (in the mask)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(handles)), frameon=False, fontsize=8)
    return figure


def _pairs(data: DataModule, samples: list[Sample]) -> Figure:
    figure = Figure(figsize=(8, 3 * len(samples)), layout="constrained")
    for line, sample in zip(figure.subplots(len(samples), 2, squeeze=False), samples, strict=True):
        for axes, key, what in zip(line, ("image", "target"), ("small", "large"), strict=True):
            _show(axes, _pixels(sample[key], data))
            height, width = sample[key].shape[-2:]
            axes.set_title(f"{what}, {height}x{width}: {sample['name']}", fontsize=8, loc="left")
    return figure


def _texts(data: Any, samples: list[Sample]) -> Figure:
    figure = Figure(figsize=(11, 0.95 * len(samples)), layout="constrained")
    for axes, sample in zip(figure.subplots(len(samples), 1, squeeze=False).flat, samples, strict=True):
        tokens = sample["tokens"][sample["target"] >= 0].tolist()[:64]
        text = "|".join(data.tokenizer.decode([token]) for token in tokens)
        axes.text(
            0, 1, _wrapped(text.replace("\n", "⏎"), 130), family="monospace", fontsize=8, va="top", parse_math=False
        )
        axes.set_title(f"{sample['name']}: {tokens[:12]} …", fontsize=8, loc="left")
        axes.axis("off")
    return figure


def _wrapped(text: str, width: int) -> str:
    return "\n".join(text[start : start + width] for start in range(0, len(text), width))


def _show(axes: Axes, picture_HW3: np.ndarray) -> None:
    axes.imshow(picture_HW3, interpolation="nearest")
    axes.axis("off")


def _pixels(image_CHW: Tensor, data: DataModule) -> np.ndarray:
    """``(H, W, 3)`` uint8; what is not bytes was normalised."""
    if image_CHW.dtype != torch.uint8:
        std, mean = (torch.tensor(values)[:, None, None] for values in (data.std, data.mean))
        image_CHW = ((image_CHW * std + mean).clamp(0, 1) * 255).round().byte()
    return image_CHW.permute(1, 2, 0).numpy()
