"""WebDataset: tar archives in which the files of one sample have one name but for the suffix.

Shapes: N pictures, S shards.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from nala_platform.data.images.image_file import read_image
from nala_platform.data.images.layouts.listing import Listing, labelled
from nala_platform.data.images.layouts.shard_index import LABEL, Index, index_of
from nala_platform.data.images.layouts.splits import split_files
from nala_platform.data.problems import BadFileError, Excluded, Problem


class Shards:
    """A `Store` of pictures in tar archives, which are read at their offsets: no file stays open.

    Args:
        shards: the files.
        index: of them.
    """

    def __init__(self, shards: Sequence[Path], index: Index) -> None:
        self.shards, self.index = shards, index

    def path(self, place: int) -> Path:
        """See `Store.path`."""
        start, end = self.index.end_N[place : place + 2]
        return self._shard(place) / os.fsdecode(self.index.names[start:end].tobytes())

    def read(self, place: int) -> Image.Image:
        """See `Store.read`."""
        try:
            with self._shard(place).open("rb") as file:
                file.seek(int(self.index.offset_N[place]))
                data = file.read(int(self.index.size_N[place]))
        except OSError as error:
            raise BadFileError(Problem("unreadable", self._shard(place), f"cannot be read ({error})")) from error
        return read_image(self.path(place), data)

    def _shard(self, place: int) -> Path:
        return self.shards[int(np.searchsorted(self.index.end_S, place, side="right")) - 1]


def webdataset(root: Path, excluded: Excluded) -> Listing:
    """``….tar`` with ``x.jpg`` (or jpeg, png, webp) and ``x.cls`` for each sample; other files in them are passed over.

    The name of a shard, or of its folder, tells the split: see `split_files`. A label is a number from 0 in plain
    text; there are as many classes as train's labels tell.
    """
    files = {
        split: [path for path in paths if path not in excluded] for split, paths in split_files(root, ".tar").items()
    }
    found = {split: index_of(paths, excluded) for split, paths in files.items()}
    classes = int(found["train"].label_N.max(initial=-1)) + 1
    parts = {
        split: labelled(Shards(files[split], index), index.label_N, excluded, classes) for split, index in found.items()
    }
    return Listing(tuple(map(str, range(classes))), parts, labels=f"the numbers in the .{LABEL} files")
