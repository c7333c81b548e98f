"""Picture files in folders, and pictures as tensors.

Shapes: H W pixels.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from nala_platform.data.files import check_folder, files_under
from nala_platform.data.images.image_file import read_image
from nala_platform.data.loader import Sample
from nala_platform.data.order import Draw
from nala_platform.errors import UserError
from nala_platform.paths import StrPath

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


class PictureItems(Dataset[Sample]):
    """Pictures without labels, for prediction: ``image`` and ``name``, the path below the folder.

    Args:
        path: a picture, or a folder that is searched with all folders below it.
        transform: from an upright RGB picture to ``(3, H, W)`` float32.

    Raises:
        UserError: nothing there.
    """

    def __init__(self, path: StrPath, transform: Callable[[Image.Image], Tensor]) -> None:
        root = Path(path).expanduser()
        if not root.exists():
            raise UserError(f"data.predict_path: {root} does not exist: give a picture or a folder of pictures")
        self.folder = root.parent if root.is_file() else root
        self.paths = [root] if root.is_file() else pictures_under(root)
        if not self.paths:
            raise UserError(f"data.predict_path: {root} holds no picture ({' '.join(SUFFIXES)})")
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, draw: Draw) -> Sample:
        path = self.paths[draw.index]
        return {"image": self.transform(read_image(path)), "name": path.relative_to(self.folder).as_posix()}


def pictures_under(folder: Path) -> list[Path]:
    """All picture files below a folder; see `files_under`."""
    return files_under(folder, SUFFIXES)


def split_folder(root: Path, name: str) -> Path:
    """The folder ``root/name``.

    Raises:
        UserError: it does not exist; the message says what is there instead.
    """
    check_folder(root)
    if not (root / name).is_dir():
        there = ", ".join(sorted(path.name for path in root.iterdir() if path.is_dir())[:8]) or "no folders"
        raise UserError(f"data.root: {root} has no folder {name} (there: {there})")
    return root / name


def as_bytes(image: Image.Image) -> Tensor:
    """The pixels as they are: uint8 ``(3, H, W)``."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def normalised(pixels_HW3: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """``(pixels / 255 - mean) / std`` as float32 ``(3, H, W)`` of uint8 pixels ``(H, W, 3)``."""
    # a copy: Pillow's arrays are read-only, and torch takes no views of flipped ones
    pixels_3HW = torch.from_numpy(np.array(pixels_HW3)).permute(2, 0, 1).float()
    middle, width = (torch.tensor(values)[:, None, None] * 255 for values in (mean, std))
    return ((pixels_3HW - middle) / width).contiguous()
