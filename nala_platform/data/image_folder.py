"""Classification from a tree of class folders.

Shapes: H W pixels.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from PIL import Image
from timm.data.transforms_factory import create_transform
from torch import Tensor
from torch.utils.data import Dataset

from nala_platform.data.base import IMAGENET_MEAN, IMAGENET_STD, DataModule, Mean, Split
from nala_platform.data.image_file import read_image
from nala_platform.data.loader import Sample
from nala_platform.data.order import Draw, sample_seed, seeded
from nala_platform.data.pictures import SUFFIXES, PictureItems, as_bytes, pictures_under, split_folder
from nala_platform.errors import UserError

Transform = Callable[[Image.Image], Tensor]
# timm passes over sections that it cannot read, such as one without its number
_RANDAUG = re.compile(r"[a-z0-9]+(-([a-su-z][a-z]*[0-9.]+|t[a-z0-9_]+))*")
_EXAMPLE = "for example rand-m9-mstd0.5-inc1, or none"

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]


@dataclass(frozen=True)
class Pixels:
    """How a picture becomes a tensor, in training and evaluation.

    Attributes:
        crop_pct: evaluation enlarges so that the shorter side is ``image_size / crop_pct``, then crops the centre.
        interpolation: filter of all resizing.
        mean: of each channel, on the scale 0..1, that is subtracted.
        std: likewise, divided by.
    """

    crop_pct: float = 0.875
    interpolation: Interpolation = "bicubic"
    mean: Mean = IMAGENET_MEAN
    std: Mean = IMAGENET_STD

    def __post_init__(self) -> None:
        if not 0 < self.crop_pct <= 1:
            raise UserError(f"data.pixels.crop_pct is {self.crop_pct}: it must be in (0, 1]")
        if min(self.std) <= 0:
            raise UserError(f"data.pixels.std is {self.std}: each value must be above 0")


@dataclass(frozen=True)
class Augment:
    """What training does to a picture, in timm's words; evaluation does none of it.

    Attributes:
        randaug: timm's RandAugment, AugMix or AutoAugment string, or ``none``.
        color_jitter: strength of brightness, contrast and saturation; only without ``randaug``, or with its policy 3a.
        re_prob: probability of random erasing (with noise).
        scale: share of the picture's area that the random crop takes, from and to.
        ratio: of the crop's width to its height, from and to.
        hflip: probability of a left-right flip.
        vflip: probability of an upside-down flip.
    """

    randaug: str = "rand-m9-mstd0.5-inc1"
    color_jitter: float = 0.0
    re_prob: float = 0.0
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (0.75, 1.3333)
    hflip: float = 0.5
    vflip: float = 0.0

    def __post_init__(self) -> None:
        for key in ("re_prob", "hflip", "vflip"):
            if not 0 <= getattr(self, key) <= 1:
                raise UserError(f"data.augment.{key} is {getattr(self, key)}: a probability lies in 0..1")
        if not 0 < self.scale[0] <= self.scale[1] or not 0 < self.ratio[0] <= self.ratio[1]:
            raise UserError(
                f"data.augment: scale {self.scale} and ratio {self.ratio} must be positive, the smaller first"
            )
        if self.color_jitter < 0:
            raise UserError(f"data.augment.color_jitter is {self.color_jitter}: it must be 0 or more")
        if self.randaug == "none":
            return
        if not _RANDAUG.fullmatch(self.randaug):
            raise UserError(f"data.augment.randaug: timm does not know {self.randaug!r}; {_EXAMPLE}")
        if self.color_jitter and "3a" not in self.randaug:
            raise UserError(
                "data.augment.color_jitter does not act beside randaug: set randaug to none or the jitter to 0"
            )


class ImageFolderData(DataModule):
    """Pictures in ``root/train/<class>/…`` and ``root/val/<class>/…``, with ``root/test/<class>/…`` where there is one.

    A class is a folder; its index is its place in the sorted names. Without ``test``, or with pictures but no class
    folders in it, the validation split is the test split, and `protocol` says so; ``predict`` takes ``test`` even so.

    Args:
        root: the folder.
        image_size: edge of the square that the network sees, or ``[height, width]``.
        batch_size: of one process.
        num_workers: loader processes.
        seed: of order and augmentation; None is the run's, ``seed_everything``.
        pixels: resizing and normalisation.
        augment: of the training pictures.
        predict_path: a picture, or a folder of them, for ``predict``. ``None`` predicts the test split.

    Raises:
        UserError: folders are missing, empty or disagree on the classes; a setting is out of range.
    """

    def __init__(
        self,
        root: str,
        image_size: int | tuple[int, int] = 224,
        batch_size: int = 64,
        num_workers: int = 0,
        seed: int | None = None,
        pixels: Pixels = Pixels(),
        augment: Augment = Augment(),
        predict_path: str | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=batch_size,
            predict_batch_size=batch_size,
            num_workers=num_workers,
            seed=seed,
        )
        self.root = Path(root).expanduser()
        self.size: tuple[int, int] = (image_size, image_size) if isinstance(image_size, int) else image_size
        if min(self.size) < 1:
            raise UserError(f"data.image_size is {image_size}: it must be 1 or more")
        self.pixels, self.augment, self.predict_path = pixels, augment, predict_path
        self.mean, self.std = pixels.mean, pixels.std
        self.train_transform, self.eval_transform = self._train_transform(), self._eval_transform()
        self.files = {"train": _class_files(self.root, "train"), "val": _class_files(self.root, "val")}
        if any(path.is_dir() for path in (self.root / "test").glob("[!.]*")):
            self.files["test"] = _class_files(self.root, "test")
        self.class_names = tuple(self.files["train"])
        self.num_classes = len(self.class_names)
        for split, files in self.files.items():
            _same_classes(self.class_names, tuple(files), self.root / split)
        if predict_path is not None:
            PictureItems(predict_path, self.eval_transform)  # found out now, not after the model has been built

    def items(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.items`."""
        if split == "train":
            return FileItems(self._labelled("train"), self.root, self.train_transform, seed=self.seed)
        if split == "predict" and self.predict_path is not None:
            return PictureItems(self.predict_path, self.eval_transform)
        if split == "predict":
            folder = "test" if (self.root / "test").is_dir() else "val"
            return PictureItems(str(self.root / folder), self.eval_transform)
        folder = self._test_folder() if split == "test" else split
        return FileItems(self._labelled(folder), self.root, self.eval_transform)

    def whole(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.whole`; pictures are uint8."""
        if split == "predict":
            return self.items(split)
        return FileItems(self._labelled(self._test_folder() if split == "test" else split), self.root, as_bytes)

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        height, width = self.size
        return {
            "data": "image folder",
            "root": str(self.root),
            "test split": "test" if "test" in self.files else "val (there is no test folder with classes)",
            "images": {split: sum(map(len, files.values())) for split, files in self.files.items()},
            "classes": self.num_classes,
            "preprocessing": f"centre crop {height}x{width} at {self.pixels.crop_pct}, {self.pixels.interpolation}",
            "mean": list(self.mean),
            "std": list(self.std),
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """Top-1 of the commonest training class on the test split."""
        counts = Counter({name: len(files) for name, files in self.files["train"].items()})
        tested = self.files[self._test_folder()]
        commonest = counts.most_common(1)[0][0]
        return {"majority class": {"top1": len(tested[commonest]) / sum(map(len, tested.values()))}}

    def _test_folder(self) -> str:
        return "test" if "test" in self.files else "val"

    def _labelled(self, split: str) -> list[tuple[Path, int]]:
        return [(path, label) for label, files in enumerate(self.files[split].values()) for path in files]

    def _train_transform(self) -> Transform:
        augment = self.augment
        try:
            transform = create_transform(
                (3, *self.size),
                is_training=True,
                scale=augment.scale,
                ratio=augment.ratio,
                hflip=augment.hflip,
                vflip=augment.vflip,
                color_jitter=augment.color_jitter or None,  # type: ignore[arg-type]
                auto_augment=None if augment.randaug == "none" else augment.randaug,
                interpolation=self.pixels.interpolation,
                mean=self.mean,
                std=self.std,
                re_prob=augment.re_prob,
                re_mode="pixel",
            )
            return cast(Transform, transform)
        except (AssertionError, ValueError, IndexError) as error:
            raise UserError(f"data.augment.randaug: timm does not know {augment.randaug!r}; {_EXAMPLE}") from error

    def _eval_transform(self) -> Transform:
        transform = create_transform(
            (3, *self.size),
            crop_pct=self.pixels.crop_pct,
            interpolation=self.pixels.interpolation,
            mean=self.mean,
            std=self.std,
        )
        return cast(Transform, transform)


class FileItems(Dataset[Sample]):
    """Labelled pictures; with a seed, what the transform draws at random is a function of (seed, epoch, index)."""

    def __init__(
        self, files: list[tuple[Path, int]], root: Path, transform: Transform, *, seed: int | None = None
    ) -> None:
        self.files, self.root, self.transform, self.seed = files, root, transform, seed

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, draw: Draw) -> Sample:
        path, label = self.files[draw.index]
        image = read_image(path)
        if self.seed is None:
            pixels = self.transform(image)
        else:
            with seeded(sample_seed(self.seed, draw)):
                pixels = self.transform(image)
        return {"image": pixels, "target": label, "name": path.relative_to(self.root).as_posix()}


def _class_files(root: Path, split: str) -> dict[str, list[Path]]:
    """The pictures of each class folder, names sorted."""
    folder = split_folder(root, split)
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(names) < 2:
        raise UserError(
            f"{folder} has {len(names)} class folders: classification needs two or more, one for each class"
        )
    files = {name: pictures_under(folder / name) for name in names}
    empty = [name for name, paths in files.items() if not paths]
    if empty:
        raise UserError(
            f"{folder}: {len(empty)} of {len(names)} class folders hold no picture ({' '.join(SUFFIXES)}): "
            f"{', '.join(empty[:5])}"
        )
    return files


def _same_classes(wanted: tuple[str, ...], found: tuple[str, ...], folder: Path) -> None:
    lacking, strange = sorted({*wanted} - {*found}), sorted({*found} - {*wanted})
    if lacking or strange:
        parts = [f"lacks {len(lacking)} of the class folders in train: {', '.join(lacking[:5])}"] if lacking else []
        parts += [f"has {len(strange)} that train has not: {', '.join(strange[:5])}"] if strange else []
        raise UserError(f"{folder} {'; it '.join(parts)}")
