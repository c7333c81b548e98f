"""What ``nala predict`` leaves for a person.

Shapes: B batch, H W pixels.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from PIL import Image

from nala_platform.callbacks.files import take_files
from nala_platform.callbacks.pictures import Palette, colourise, displayable
from nala_platform.errors import UserError
from nala_platform.paths import shown


class ClassificationCSV(Callback):
    """Writes ``predictions.csv`` with the columns ``file,class,probability``, a row an image as it is predicted.

    Under several processes each writes ``predictions-<rank>.csv`` of its own share.
    """

    def __init__(self) -> None:
        super().__init__()
        self.path = Path()

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the file."""
        share = "" if trainer.world_size == 1 else f"-{trainer.global_rank}"
        self.path = _folder(trainer) / f"predictions{share}.csv"
        self._append([["file", "class", "probability"]])

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Add the rows of a batch."""
        names = getattr(trainer, "datamodule").class_names  # noqa: B009 - not in the Trainer's type
        triples = zip(outputs["name"], outputs["class"].tolist(), outputs["probability"].tolist(), strict=True)
        self._append([[name, names[index], f"{probability:.6f}"] for name, index, probability in triples])

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say where the result is."""
        if trainer.is_global_zero:
            print(f"predictions: {shown(self.path)}")

    def _append(self, rows: list[Sequence[str]]) -> None:
        with self.path.open("a", newline="", encoding="utf-8", errors="surrogateescape") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


class SegmentationPNG(Callback):
    """Writes two files an image: ``<stem>.png``, class indices with the palette, and ``<stem>_overlay.png``.

    The index file is a palette PNG: a viewer shows colours, a program that opens it reads the class of each pixel. A
    palette has 256 colours; with more classes the index file is a grey PNG of 16 bits.
    `take_files` tells where they lie.

    Args:
        opacity: of the colours over the image, in (0, 1].
    """

    def __init__(self, opacity: float = 0.5) -> None:
        super().__init__()
        self.opacity = opacity

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse what no PNG can hold."""
        classes = len(getattr(trainer, "datamodule").palette)  # noqa: B009 - not in the Trainer's type
        if classes > 65536:
            raise UserError(f"predictions of {classes} classes do not fit a PNG of 16 bits, which holds 65536")

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Write the pictures of a batch."""
        data: Any = getattr(trainer, "datamodule")  # noqa: B009
        folder = _folder(trainer)
        for name, image, mask in zip(outputs["name"], batch["image"], outputs["mask"], strict=True):
            index_HW = mask.cpu().numpy()
            index_path, overlay_path = take_files(folder, name, (".png", "_overlay.png"))
            _index_picture(index_HW, data.palette).save(index_path)
            pixels = displayable(image, data.mean, data.std)
            blend = pixels * (1 - self.opacity) + colourise(index_HW, data.palette) * self.opacity
            Image.fromarray(blend.round().astype(np.uint8)).save(overlay_path)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say where the result is."""
        if trainer.is_global_zero:
            print(f"predictions: {shown(_folder(trainer))} (a mask and an overlay an image)")


def _index_picture(index_HW: np.ndarray, palette: Palette) -> Image.Image:
    if len(palette) > 256:
        return Image.fromarray(index_HW.astype(np.uint16))
    picture = Image.fromarray(index_HW.astype(np.uint8))
    picture.putpalette([channel for colour in palette for channel in colour])
    return picture


def _folder(trainer: Trainer) -> Path:
    folder = Path(trainer.default_root_dir)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
