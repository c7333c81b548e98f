"""What a layout of a classification data set says: where the pictures are, and which class each is of.

Shapes: N pictures, C classes.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from nala_platform.data.images.image_file import read_image
from nala_platform.data.order import permutation
from nala_platform.data.problems import Excluded, Problem, report

HELD_OUT = 10  # one in so many
HOLD_OUT = "val: 10 % of each class of train, always the same pictures; they are not trained on"


class Store(Protocol):
    """Pictures that are read by their place ``0..``, in any order and by several processes at once.

    A store keeps no open file and little memory a picture: loader workers hold a copy of it.
    """

    def path(self, place: int) -> Path:
        """The picture's file; one inside an archive is named as if that was a folder."""
        ...

    def read(self, place: int) -> Image.Image:
        """As `read_image`; raises a `BadFileError`."""
        ...


@dataclass(frozen=True)
class LabelledPart:
    """The labelled pictures of one split.

    Attributes:
        store: where they are.
        place_N: in the store, int64.
        label_N: classes, int64.
    """

    store: Store
    place_N: np.ndarray
    label_N: np.ndarray

    def __len__(self) -> int:
        return len(self.place_N)

    def path(self, index: int) -> Path:
        """The file of a picture of this part."""
        return self.store.path(int(self.place_N[index]))

    def read(self, index: int) -> Image.Image:
        """A picture of this part; see `Store.read`."""
        return self.store.read(int(self.place_N[index]))

    def take(self, index_N: np.ndarray) -> "LabelledPart":
        """Those of the part that are named by index, or by a mask."""
        return replace(self, place_N=self.place_N[index_N], label_N=self.label_N[index_N])


@dataclass(frozen=True)
class Listing:
    """A data set as it was found on disk.

    Attributes:
        class_names: the name of class i at place i.
        parts: ``train`` and ``val``, and ``test`` where it has labels.
        labels: how a picture's label is known; one line for the protocol.
        notes: more lines for it.
        unlabelled: a folder of pictures that have no labels, for prediction.
    """

    class_names: tuple[str, ...]
    parts: dict[str, LabelledPart]
    labels: str
    notes: dict[str, str] = field(default_factory=dict)
    unlabelled: Path | None = None


Layout = Callable[[Path, Excluded], Listing]


class PictureFiles:
    """A `Store` of picture files below a folder.

    Args:
        root: the folder.
        names: paths below it. They are kept as one string: a list of a million is half a gigabyte, and each worker
            would come to have its own.
    """

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self.root, self._names = root, b"".join(encoded)
        self._end_N = np.cumsum([0, *map(len, encoded)])

    def path(self, place: int) -> Path:
        """See `Store.path`."""
        return self.root / os.fsdecode(self._names[self._end_N[place] : self._end_N[place + 1]])

    def read(self, place: int) -> Image.Image:
        """See `Store.read`."""
        return read_image(self.path(place))


class Arrays:
    """A `Store` of small pictures in memory.

    Args:
        pixels: uint8 ``(N, H, W)`` or ``(N, H, W, 3)``.
        files: the file that they come from and the number of pictures in it, in order.
    """

    def __init__(self, pixels: np.ndarray, files: Sequence[tuple[Path, int]]) -> None:
        self.pixels = pixels
        self.files = [path for path, _ in files]
        self._end_F = np.cumsum([0, *(count for _, count in files)])

    def path(self, place: int) -> Path:
        """See `Store.path`: the number within the file stands as its name."""
        file = int(np.searchsorted(self._end_F, place, side="right")) - 1
        return self.files[file] / str(place - self._end_F[file])

    def read(self, place: int) -> Image.Image:
        """See `Store.read`; there is nothing that could fail."""
        return Image.fromarray(self.pixels[place]).convert("RGB")


def labelled(store: Store, label_N: np.ndarray, excluded: Excluded, classes: int) -> LabelledPart:
    """A store's pictures with their labels; excluded ones are left out, and what is no class is reported and left out.

    Args:
        store: of N pictures.
        label_N: their labels.
        excluded: what the user leaves out.
        classes: C; labels are ``0..C-1``.
    """
    label_N = np.asarray(label_N, dtype=np.int64)
    keep_N = np.ones(len(label_N), dtype=bool)
    if excluded.paths:
        keep_N = np.array([store.path(place) not in excluded for place in range(len(label_N))], dtype=bool)
    strange_N = keep_N & ((label_N < 0) | (label_N >= classes))
    report(
        [
            Problem("wrong label", store.path(int(place)), f"label {label_N[place]} is outside 0..{classes - 1}")
            for place in np.flatnonzero(strange_N)
        ]
    )
    place_N = np.flatnonzero(keep_N & ~strange_N)
    return LabelledPart(store, place_N, label_N[place_N])


def with_validation(listing: Listing) -> Listing:
    """The same where there is a validation part, else with a tenth of train as one.

    Of each class that has two pictures, at least one is held out. Which ones depends on the labels alone, not on a
    run's seed.
    """
    if "val" in listing.parts:
        return listing
    train = listing.parts["train"]
    held_N = np.zeros(len(train), dtype=bool)
    for label in np.unique(train.label_N):
        index_N = np.flatnonzero(train.label_N == label)
        count = max(round(len(index_N) / HELD_OUT), int(len(index_N) > 1))
        held_N[index_N[permutation(len(index_N), seed=0, epoch=int(label))[:count]]] = True
    parts = {"train": train.take(~held_N), "val": train.take(held_N)}
    return replace(listing, parts=listing.parts | parts, notes=listing.notes | {"hold-out": HOLD_OUT})


def trained_on_all(layout: Layout) -> Layout:
    """The layout without a hold-out: all of train is trained on, and the test part is both validated on and tested."""

    def listing(root: Path, excluded: Excluded) -> Listing:
        found = layout(root, excluded)
        parts = {"train": found.parts["train"], "val": found.parts["test"]}
        return replace(found, parts=parts, notes=found.notes | {"hold-out": "none: the official test part is val"})

    return listing


def not_empty(parts: dict[str, LabelledPart], root: Path) -> None:
    """Report parts without pictures."""
    report(
        [
            Problem("empty", root, f"there is no picture that can be used for {split}")
            for split, part in parts.items()
            if not len(part)
        ]
    )
