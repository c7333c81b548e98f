"""Every sample of a split, read in parallel processes; what is worth knowing of each comes back.

Shapes: H W pixels, V distinct labels.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from nala_platform.data.images.image_file import Opened, watching
from nala_platform.data.loader import Sample, outlive_signals
from nala_platform.data.order import Draw
from nala_platform.data.problems import BadFileError, Problem
from nala_platform.errors import UserError

CHUNK = 32  # samples that a process reads before it tells of them


class Facts(NamedTuple):
    """Of one sample.

    Attributes:
        name: as the data module calls it; of one that cannot be read, its file.
        files: that were opened, the picture first.
        problem: why it cannot be used; the rest may be empty then.
        size: height and width of the picture, as it lies on disk; zeros where there is none.
        digest: of the bytes of the picture's file; of its pixels where it is labelled and lies in no file of its own.
        label_V: the labels in it, ascending: one class, those of a mask, or the least and the greatest token.
        pixels_V: how many pixels have each; empty where they are no mask's.
        tokens: how many are predicted.
    """

    name: str
    files: list[Opened]
    problem: Problem | None
    size: tuple[int, int] = (0, 0)
    digest: bytes = b""
    label_V: np.ndarray = np.zeros(0, np.int64)
    pixels_V: np.ndarray = np.zeros(0, np.int64)
    tokens: int = 0

    @property
    def label(self) -> int | None:
        """The class, where there is one for the whole sample."""
        return int(self.label_V[0]) if len(self.label_V) == 1 and not len(self.pixels_V) else None


class Inspected(Dataset[Facts]):
    """The `Facts` of each sample.

    Args:
        items: read by `Draw`.
    """

    def __init__(self, items: Dataset[Sample]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Facts:
        with watching() as files:
            path = Path(f"sample {index}")
            try:
                sample = self.items[Draw(index, epoch=0)]
            except BadFileError as error:
                return Facts(str(error.problem.path), files, error.problem)
            except UserError as error:
                path = files[-1].path if files else path
                return Facts(str(path), files, Problem("unusable", path, str(error).removeprefix(f"{path}: ")))
            except Exception as error:  # a file may break a decoder in any way; here, that is what is looked for
                path = files[-1].path if files else path
                text = f"cannot be read ({type(error).__name__}: {' '.join(str(error).split())}): replace or delete it"
                return Facts(str(path), files, Problem("unreadable", path, text))
        return _facts(sample, files)


def walk(items: Dataset[Sample], workers: int) -> Iterator[Facts]:
    """The facts of all samples, in order.

    Args:
        items: read by `Draw`.
        workers: processes; 0 reads in this one.
    """
    inspected = Inspected(items)
    few = len(inspected) <= CHUNK  # not worth a process
    chunks: DataLoader[Any] = DataLoader(
        inspected,
        batch_size=CHUNK,
        num_workers=0 if few else workers,
        collate_fn=list,
        worker_init_fn=outlive_signals,
    )
    for chunk in chunks:
        yield from chunk


def _facts(sample: Sample, files: list[Opened]) -> Facts:
    name, target = str(sample["name"]), sample.get("target")
    if "tokens" in sample:
        token_T = sample["tokens"]
        ends_2 = np.array([int(token_T.min()), int(token_T.max())])
        return Facts(name, files, None, label_V=ends_2, tokens=int((sample["target"] >= 0).sum()))
    image_CHW = sample["image"]
    size = (files[0].height, files[0].width) if files else tuple(image_CHW.shape[-2:])
    digest = files[0].digest if files else b""
    if isinstance(target, int):
        if not files:
            digest = hashlib.blake2b(image_CHW.numpy().tobytes(), digest_size=16).digest()
        return Facts(name, files, None, size, digest, np.array([target]))
    if isinstance(target, torch.Tensor) and target.dtype == torch.int64:  # a mask; other tensors are pictures
        label_V, pixels_V = np.unique(target.numpy(), return_counts=True)
        return Facts(name, files, None, size, digest, label_V, pixels_V)
    return Facts(name, files, None, size, digest)
