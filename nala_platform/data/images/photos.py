"""Photographs: the embedded data of the task ``sr``.

Shapes: H W pixels.
"""

from functools import cache
from importlib import resources
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

from nala_platform.data.base import DataModule, Mean, Part, Split
from nala_platform.data.images.pairs import MEAN, STD, Pair, Patch, Views, cropped
from nala_platform.data.images.upscale_baselines import upscale_baselines
from nala_platform.data.loader import Sample
from nala_platform.errors import UserError
from nala_platform.paths import StrPath

# The right quarter of each training photograph validates: one picture alone may rank weights the wrong way round.
# motorcycle_right shows the same scene as motorcycle_left, and is nowhere.
FILES: dict[Part, dict[str, tuple[str, str]]] = {
    "train": {
        "astronaut": ("skimage.data", "astronaut.png"),
        "rocket": ("skimage.data", "rocket.jpg"),
        "motorcycle_left": ("skimage.data", "motorcycle_left.png"),
        "hubble_deep_field": ("skimage.data", "hubble_deep_field.jpg"),
        "ihc": ("skimage.data", "ihc.png"),
        "gravel": ("skimage.data", "gravel.png"),
        "brick": ("skimage.data", "brick.png"),
        "coins": ("skimage.data", "coins.png"),
    },
    "val": {
        "china": ("sklearn.datasets.images", "china.jpg"),
        "grass": ("skimage.data", "grass.png"),
    },
    "test": {
        "chelsea": ("skimage.data", "chelsea.png"),
        "coffee": ("skimage.data", "coffee.png"),
        "flower": ("sklearn.datasets.images", "flower.jpg"),
        "camera": ("skimage.data", "camera.png"),
    },
}


HELD_OUT = "_held_out"  # ends the name of the part of a training photograph that validates
UNIT = 12  # columns; a multiple of every scale, so that both parts of a photograph keep all their pixels


@cache
def photos() -> dict[Part, dict[str, np.ndarray]]:
    """Photographs that scikit-image and scikit-learn bring along, by part and name: ``(H, W, 3)`` uint8 RGB.

    Training sees the left three quarters of eight photographs. Their right quarters and two more photographs are the
    validation part; the four of the test part are shown nowhere else. Grey ones have three equal channels.

    Raises:
        UserError: an installation without these files.
    """
    whole = {part: {name: _read(*place) for name, place in files.items()} for part, files in FILES.items()}
    train, held_out = {}, {}
    for name, image_HW3 in whole["train"].items():
        border = image_HW3.shape[1] * 3 // 4 // UNIT * UNIT
        train[name], held_out[name + HELD_OUT] = np.split(image_HW3, [border], axis=1)
    return {"train": train, "val": {**whole["val"], **held_out}, "test": whole["test"]}


def _read(package: str, file: str) -> np.ndarray:
    try:
        content = (resources.files(package) / file).read_bytes()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise UserError(
            f"{file} is not in {package}: pip install --force-reinstall 'scikit-image>=0.25' 'scikit-learn>=1.7'"
        ) from error
    return np.array(Image.open(BytesIO(content)).convert("RGB"))


class PhotosData(DataModule):
    """Photographs and their reductions by Pillow's antialiased bicubic filter: 8 to train, 10 to validate, 4 to test.

    Validation scores two photographs and the right quarters of the eight, which training does not see.

    Args:
        scale: S, 2, 3 or 4.
        patch: what training sees.
        batch_size: patches, of one process.
        num_workers: loader processes.
        seed: of order and patches; None is the run's, ``seed_everything``.
        predict_path: a picture, or a folder of them, to be enlarged by ``predict``; ``None``: the small test pictures.
    """

    mean: Mean = MEAN
    std: Mean = STD

    def __init__(
        self,
        scale: int = 2,
        # 512 steps of size 32 take less time than 384 of size 48
        patch: Patch = Patch(size=32, repeats=128),  # noqa: B008 - frozen
        batch_size: int = 8,
        num_workers: int = 0,
        seed: int | None = None,
        predict_path: StrPath | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size, eval_batch_size=1, predict_batch_size=1, num_workers=num_workers, seed=seed
        )
        self.scale, self.patch = scale, patch
        self.views = Views(scale, patch, self.seed, predict_path)
        least, name = min((min(image.shape[:2]), name) for name, image in photos()["train"].items())
        if patch.size > least // scale:
            raise UserError(
                f"data.patch.size is {patch.size}, but x{scale} patches of the embedded {name} have at most "
                f"{least // scale} pixels: lower it"
            )

    def items(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.items`."""
        pairs = _pairs("test" if split == "predict" else split)
        return self.views.items(split, pairs.__getitem__, len(pairs))

    def whole(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.whole`."""
        if split == "predict":
            return self.items(split)
        pairs = _pairs(split)
        return self.views.whole(pairs.__getitem__, len(pairs))

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        return {
            "data": "photos",
            "source": "scikit-image and scikit-learn's bundled photographs",
            "split": {part: list(images) for part, images in photos().items()},
            "held out": "the right quarter of each training photograph, which training does not see",
            "low resolution": "Pillow bicubic, antialiased, 8 bits; pictures cropped to multiples of the scale",
            **self.views.protocol(),
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """See `DataModule.baselines`."""
        return photo_baselines(self.scale)


def _pairs(part: Part) -> list[Pair]:
    return [Pair(name, Image.fromarray(image)) for name, image in photos()[part].items()]


@cache
def photo_baselines(scale: int) -> dict[str, dict[str, float]]:
    """See `upscale_baselines`."""
    train, test = (
        [cropped(Image.fromarray(image), scale) for image in photos()[part].values()] for part in ("train", "test")
    )
    return upscale_baselines(train, test, scale)
