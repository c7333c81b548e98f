"""WebDataset: tar archives in which the files of one sample stand together and have one name but for the suffix.

Shapes: N pictures.
"""

import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from nala_platform.data.image_file import read_image
from nala_platform.data.layouts.listing import Listing, labelled
from nala_platform.data.layouts.splits import split_files
from nala_platform.data.problems import BadFileError, Excluded, Problem, report

PICTURES = ("jpg", "jpeg", "png", "webp")
LABEL = "cls"


class Member(NamedTuple):
    """A picture inside a shard, and its label."""

    name: str
    offset: int
    size: int
    label: int


class Shards:
    """A `Store` of pictures in tar archives, which are read at their offsets: no file stays open.

    Args:
        members: of each shard.
    """

    def __init__(self, members: Mapping[Path, Sequence[Member]]) -> None:
        rows = [member for found in members.values() for member in found]
        self.shards = list(members)
        self._end_S = np.cumsum([0, *map(len, members.values())])
        self._offset_N = np.array([row.offset for row in rows], dtype=np.int64)
        self._size_N = np.array([row.size for row in rows], dtype=np.int64)
        # one string, as in `Files`
        encoded = [os.fsencode(row.name) for row in rows]
        self._names, self._end_N = b"".join(encoded), np.cumsum([0, *map(len, encoded)])

    def path(self, place: int) -> Path:
        """See `Store.path`."""
        return self._shard(place) / os.fsdecode(self._names[self._end_N[place] : self._end_N[place + 1]])

    def read(self, place: int) -> Image.Image:
        """See `Store.read`."""
        try:
            with self._shard(place).open("rb") as file:
                file.seek(int(self._offset_N[place]))
                data = file.read(int(self._size_N[place]))
        except OSError as error:
            raise BadFileError(Problem("unreadable", self._shard(place), f"cannot be read ({error})")) from error
        return read_image(self.path(place), data)

    def _shard(self, place: int) -> Path:
        return self.shards[int(np.searchsorted(self._end_S, place, side="right")) - 1]


def webdataset(root: Path, excluded: Excluded) -> Listing:
    """``….tar`` with ``x.jpg`` (or jpeg, png, webp) and ``x.cls`` for each sample; other files in them are passed over.

    The name of a shard, or of its folder, tells the split: see `split_files`. A label is a number from 0 in plain
    text; there are as many classes as train's labels tell.
    """
    stores, labels = {}, {}
    for split, paths in split_files(root, ".tar").items():
        members = {path: _members(path, excluded) for path in paths if path not in excluded}
        stores[split] = Shards(members)
        labels[split] = np.array([row.label for found in members.values() for row in found], dtype=np.int64)
    classes = int(labels["train"].max(initial=-1)) + 1
    parts = {split: labelled(stores[split], labels[split], excluded, classes) for split in stores}
    return Listing(tuple(map(str, range(classes))), parts, labels=f"the numbers in the .{LABEL} files")


def _members(path: Path, excluded: Excluded) -> list[Member]:
    """The labelled pictures of a shard, in its order; others, and what is wrong with the shard, are reported."""
    pictures: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, tarfile.TarInfo] = {}
    try:
        # not transparently: a packed archive has no offsets to read at
        with tarfile.open(path, "r:") as archive:
            for info in archive:
                folder, _, name = info.name.rpartition("/")
                stem, _, suffix = name.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if info.isfile() and stem and suffix.lower() in PICTURES:
                    pictures[key] = info
                elif info.isfile() and stem and suffix.lower() == LABEL:
                    labels[key] = info
    except (tarfile.TarError, OSError, EOFError) as error:
        text = f"cannot be read as a plain tar archive ({error}): unpack it if it is compressed, else copy it again"
        report([Problem("unreadable", path, text)])
    lonely = [(pictures[key], LABEL) for key in pictures if key not in labels]
    lonely += [(labels[key], PICTURES[0]) for key in labels if key not in pictures]
    report(
        [
            Problem("unpaired", path / info.name, f"the shard has no .{suffix} of this name")
            for info, suffix in lonely
            if path / info.name not in excluded
        ]
    )
    return _labelled_members(path, [(pictures[key], labels[key]) for key in pictures if key in labels], excluded)


def _labelled_members(
    path: Path, pairs: list[tuple[tarfile.TarInfo, tarfile.TarInfo]], excluded: Excluded
) -> list[Member]:
    found, problems = [], []
    with path.open("rb") as file:
        for picture, label in pairs:
            file.seek(label.offset_data)
            text = file.read(label.size).strip()
            if text.isdigit():
                found.append(Member(picture.name, picture.offset_data, picture.size, int(text)))
            elif path / picture.name not in excluded:
                shown = text[:20].decode(errors="replace")
                problems.append(Problem("wrong label", path / picture.name, f"its .{LABEL} is {shown!r}, no number"))
    report(problems)
    return found
