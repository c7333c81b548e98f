"""Your own pictures for super-resolution: folders of large ones, with or without folders of small ones.

Shapes: H W pixels of the large picture, S scale, P edge of a patch in the small one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, UnidentifiedImageError
from torch.utils.data import Dataset

from nala_platform.data.base import DataModule, Mean, Split
from nala_platform.data.image_file import read_image
from nala_platform.data.loader import Sample
from nala_platform.data.pairs import MEAN, STD, Pair, PairItems, Patch, Tiled, check_scale, cropped, pixels
from nala_platform.data.pictures import SUFFIXES, PictureItems, pictures_under
from nala_platform.errors import UserError

WINDOW = 11  # pixels; what the scores need beside the border


@dataclass(frozen=True)
class Folders:
    """Where the pictures are. Each folder is searched with all folders below it.

    Attributes:
        train_hr: large pictures to train on; needed.
        val_hr: large pictures to choose the best checkpoint by; needed.
        test_hr: large pictures to score; ``None``: those of validation, and `protocol` says so.
        train_lr, val_lr, test_lr: the small ones; ``None``: made from the large ones.
    """

    train_hr: str | None = None
    val_hr: str | None = None
    test_hr: str | None = None
    train_lr: str | None = None
    val_lr: str | None = None
    test_lr: str | None = None


class Files(NamedTuple):
    """A large picture and the small one where there is one."""

    name: str
    large: Path
    small: Path | None


class PairFolderData(DataModule):
    """Folders of large pictures; the small ones are made by Pillow's antialiased bicubic filter, or read.

    Small ones are paired by their names below the folder, suffixes apart: to ``0001.png`` belong ``0001.png``,
    ``0001x4.png``, ``0001_x4.png``, ``0001_LR.png`` or ``0001_LRx4.png`` (for S = 4); a large one's ``_HR`` is dropped.
    Large pictures are cropped to multiples of S; a small one must have exactly 1/S of that size.

    Args:
        folders: where the pictures are.
        scale: S, 2, 3 or 4.
        patch: what training sees.
        batch_size: patches, of one process.
        num_workers: loader processes.
        seed: of order and patches; None is the run's, ``seed_everything``.
        tile: edge, in small pixels, of the squares that evaluation and prediction cut a picture into, to bound their
            memory; ``None``: pictures go through as wholes.
        predict_path: a picture, or a folder of them, to be enlarged by ``predict``; ``None``: the small test pictures.

    Raises:
        UserError: folders or partners are missing, or sizes do not fit; found out now, from the files' headers.
    """

    mean: Mean = MEAN
    std: Mean = STD

    def __init__(
        self,
        folders: Folders,
        scale: int = 2,
        patch: Patch = Patch(),  # noqa: B008 - frozen
        batch_size: int = 16,
        num_workers: int = 0,
        seed: int | None = None,
        tile: int | None = None,
        predict_path: str | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size, eval_batch_size=1, predict_batch_size=1, num_workers=num_workers, seed=seed
        )
        check_scale(scale, tile)
        self.scale, self.patch, self.tile, self.predict_path = scale, patch, tile, predict_path
        self.has_test = folders.test_hr is not None
        self.folders = folders
        self.files: dict[str, list[Files]] = {
            "train": pair_up("train", _needed("train", folders.train_hr), folders.train_lr, scale),
            "val": pair_up("val", _needed("val", folders.val_hr), folders.val_lr, scale),
        }
        if folders.test_hr is not None:
            self.files["test"] = pair_up("test", folders.test_hr, folders.test_lr, scale)
        elif folders.test_lr is not None:
            raise UserError(f"data.folders.test_lr is {folders.test_lr}, but there is no test_hr: give both or neither")
        for split, files in self.files.items():
            least = scale * patch.size if split == "train" else 2 * scale + WINDOW
            _check_sizes(split, files, scale, least)
        if predict_path is not None:
            PictureItems(predict_path, pixels)  # found out now, not after the model has been built

    def items(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.items`."""
        items = self._items(split)
        return items if self.tile is None or split == "train" else Tiled(items, self.tile)

    def whole(self, split: Split) -> Dataset[Sample]:
        """See `DataModule.whole`."""
        if split != "train":
            return self._items(split)
        files = self.files["train"]
        return PairItems(Reader(files, self.scale), len(files), scale=self.scale)

    def _items(self, split: Split) -> Dataset[Sample]:
        if split == "predict" and self.predict_path is not None:
            return PictureItems(self.predict_path, pixels)
        files = self.files["train" if split == "train" else self._test() if split != "val" else "val"]
        return PairItems(
            Reader(files, self.scale),
            len(files),
            scale=self.scale,
            patch=self.patch if split == "train" else None,
            seed=self.seed,
            labelled=split != "predict",
        )

    def protocol(self) -> dict[str, Any]:
        """See `DataModule.protocol`."""
        given = self.folders.test_lr if self.has_test else self.folders.val_lr
        return {
            "data": "folders of pictures",
            "folders": {key: value for key, value in vars(self.folders).items() if value is not None},
            "test split": "test" if self.has_test else "val (there is no test_hr)",
            "images": {split: len(files) for split, files in self.files.items()},
            "scale": self.scale,
            "low resolution": "read from files" if given else "Pillow bicubic, antialiased, 8 bits",
            "cropping": "large pictures to multiples of the scale",
            "inference": "whole pictures" if self.tile is None else f"tiles of {self.tile} low-resolution pixels",
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """None: they would need a pass over all pictures."""
        return {}

    def _test(self) -> str:
        return "test" if self.has_test else "val"


class Reader:
    """Reads the i-th pair; the sizes are checked once more, against what the files hold."""

    def __init__(self, files: list[Files], scale: int) -> None:
        self.files, self.scale = files, scale

    def __call__(self, index: int) -> Pair:
        """The pair, the large picture cropped to multiples of the scale."""
        name, large_path, small_path = self.files[index]
        large = cropped(read_image(large_path), self.scale)
        if small_path is None:
            return Pair(name, large)
        small = read_image(small_path)
        if (small.width * self.scale, small.height * self.scale) != large.size:
            raise _mismatch(large_path, large.size, small_path, small.size, self.scale)
        return Pair(name, large, small)


def pair_up(split: str, large_folder: str, small_folder: str | None, scale: int) -> list[Files]:
    """The large pictures of a folder with their small ones, sorted by name.

    Raises:
        UserError: a folder that is missing or empty, or pictures without a partner.
    """
    large = _by_stem(split, "hr", large_folder)
    if small_folder is None:
        return [
            Files(path.relative_to(Path(large_folder).expanduser()).as_posix(), path, None) for path in large.values()
        ]
    small = _by_stem(split, "lr", small_folder)
    partner = {stem: next((name for name in _small_names(stem, scale) if name in small), None) for stem in large}
    lonely = sorted(stem for stem, name in partner.items() if name is None)
    if lonely:
        raise UserError(
            f"data.folders.{split}_lr: {len(lonely)} of {len(large)} pictures in {large_folder} have no partner in "
            f"{small_folder} ({', '.join(lonely[:5])}): it would be called {lonely[0]} or {lonely[0]}x{scale}"
        )
    strange = sorted(small.keys() - set(partner.values()))
    if strange:
        raise UserError(
            f"data.folders.{split}_hr: {len(strange)} of {len(small)} pictures in {small_folder} have no partner in "
            f"{large_folder} ({', '.join(strange[:5])}): add them or delete these"
        )
    root = Path(large_folder).expanduser()
    return [Files(path.relative_to(root).as_posix(), path, small[str(partner[stem])]) for stem, path in large.items()]


def _needed(split: str, folder: str | None) -> str:
    if folder is None:
        raise UserError(
            f"data.folders.{split}_hr is missing: give --data.folders.{split}_hr the folder of large pictures"
        )
    return folder


def _small_names(stem: str, scale: int) -> list[str]:
    base = stem.removesuffix("_HR")
    ends = ("", f"x{scale}", f"_x{scale}", "_LR", f"_LRx{scale}", f"_LR_x{scale}")
    return list(dict.fromkeys([stem, *(base + end for end in ends)]))


def _by_stem(split: str, kind: str, folder: str) -> dict[str, Path]:
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise UserError(f"data.folders.{split}_{kind}: folder {root} does not exist")
    found: dict[str, Path] = {}
    for path in pictures_under(root):
        stem = path.relative_to(root).with_suffix("").as_posix()
        if stem in found:
            raise UserError(
                f"{root}: {found[stem].name} and {path.name} have the same name but for the suffix: keep one"
            )
        found[stem] = path
    if not found:
        raise UserError(f"data.folders.{split}_{kind}: {root} holds no picture ({' '.join(SUFFIXES)})")
    return found


def _check_sizes(split: str, files: Iterable[Files], scale: int, least: int) -> None:
    for _, large, small in files:
        width, height = _size(large)
        if min(width, height) < least:
            what = f"x{scale} patches of {least // scale} pixels need" if split == "train" else "the scores need"
            mend = "lower --data.patch.size or take it out" if split == "train" else "take it out"
            raise UserError(f"{large} (split {split}) is {width}x{height}, but {what} {least}x{least} or more: {mend}")
        whole = (width // scale * scale, height // scale * scale)
        if small is not None and tuple(scale * edge for edge in _size(small)) != whole:
            raise _mismatch(large, (width, height), small, _size(small), scale, split)


def _mismatch(
    large: Path, large_size: tuple[int, ...], small: Path, small_size: tuple[int, ...], scale: int, split: str = ""
) -> UserError:
    place = f" (split {split})" if split else ""
    has, wanted = _text(large_size), _text(tuple(edge // scale for edge in large_size))
    return UserError(
        f"{small}{place} is {_text(small_size)}, but 1/{scale} of {large}, {has}, is {wanted} (width x height): set "
        "--data.scale, or pair the right folders"
    )


def _text(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))


def _size(path: Path) -> tuple[int, int]:
    """Width and height, upright, from the file's header."""
    try:
        with Image.open(path) as image:
            turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
            return (image.height, image.width) if turned else image.size
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        return read_image(path).size  # which says what is wrong with it
