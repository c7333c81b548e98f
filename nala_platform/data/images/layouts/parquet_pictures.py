"""Parquet files of pictures, as the Hugging Face hub serves them.

Shapes: N pictures.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from nala_platform.data.images.image_file import read_image
from nala_platform.data.images.layouts.listing import Listing, labelled
from nala_platform.data.images.layouts.splits import split_files
from nala_platform.data.problems import BadFileError, Excluded, Problem, report
from nala_platform.errors import UserError

IMAGES, LABELS = ("image", "img"), ("label", "labels", "fine_label")
INSTALL = "pip install 'nala-platform[text]'"
KEPT = 2  # row groups that a process keeps


class OpenedParquet(NamedTuple):
    """What is known of a file.

    Attributes:
        metadata: as pyarrow tells it; with it, a file is opened without being parsed.
        column: of the pictures.
        label_N: int64; -1 where there is none.
        names: of the classes, where the file tells them.
    """

    metadata: Any
    column: str
    label_N: np.ndarray
    names: tuple[str, ...]


class Rows:
    """A `Store` of pictures in parquet files; no file stays open.

    Parquet is read by row groups, of which each process keeps the last two: pictures in order are read once, but a
    shuffled one costs its whole group. The hub's groups have 100 rows, some 10 MB; with larger ones write files anew
    (``pyarrow.parquet.write_table(table, path, row_group_size=100)``), or training waits for its data.

    Args:
        files: in order.
    """

    def __init__(self, files: dict[Path, OpenedParquet]) -> None:
        self.files = list(files)
        self.opened = [(file.metadata, file.column) for file in files.values()]
        counts = [
            (file, group, metadata.row_group(group).num_rows)
            for file, (metadata, _) in enumerate(self.opened)
            for group in range(metadata.num_row_groups)
        ]
        self._file_G = np.array([file for file, _, _ in counts], dtype=np.int64)
        self._group_G = np.array([group for _, group, _ in counts], dtype=np.int64)
        self._end_G = np.cumsum([0, *(count for _, _, count in counts)])
        self._end_F = np.cumsum([0, *(metadata.num_rows for metadata, _ in self.opened)])
        self._kept: dict[int, Any] = {}

    def path(self, place: int) -> Path:
        """See `Store.path`: the row stands as the name."""
        file = int(np.searchsorted(self._end_F, place, side="right")) - 1
        return self.files[file] / str(place - self._end_F[file])

    def read(self, place: int) -> Image.Image:
        """See `Store.read`."""
        group = int(np.searchsorted(self._end_G, place, side="right")) - 1
        if group not in self._kept:
            while len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[group] = self._group(group)
        row = self._kept[group][int(place - self._end_G[group])].as_py()
        data = row.get("bytes") if isinstance(row, dict) else row
        if not isinstance(data, bytes):
            text = "the row holds no bytes of a picture: pictures must lie in the file itself"
            raise BadFileError(Problem("missing", self.path(place), text))
        return read_image(self.path(place), data)

    def _group(self, group: int) -> Any:
        import pyarrow.parquet as parquet

        path, (metadata, column) = self.files[self._file_G[group]], self.opened[self._file_G[group]]
        try:
            with parquet.ParquetFile(path, metadata=metadata) as file:
                table = file.read_row_group(int(self._group_G[group]), columns=[column], use_threads=False)
        except (OSError, ValueError, NotImplementedError) as error:
            raise BadFileError(_unreadable(path, error)) from error
        return table.column(0)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": {}}


def parquet(root: Path, excluded: Excluded) -> Listing:
    """``train-00000-of-00294.parquet …`` and so on below ``root``, with the columns ``image`` and ``label``.

    An image is ``{"bytes", "path"}``, or bytes alone; ``img`` and ``labels`` or ``fine_label`` are taken too. The name
    of a file, or of its folder, tells the split: see `split_files`. The classes' names are those that ``datasets``
    wrote into the file; without them there are as many classes as train's labels tell. A test split whose labels are
    all -1 has none, and is left out.
    """
    stores, labels = {}, {}
    names: tuple[str, ...] = ()
    for split, paths in split_files(root, ".parquet").items():
        files = {path: file for path in paths if path not in excluded and (file := _opened(path)) is not None}
        label_N = np.concatenate([np.zeros(0, np.int64), *(file.label_N for file in files.values())])
        if split == "test" and (label_N == -1).all():
            continue
        names = names or next((file.names for file in files.values()), ())
        stores[split], labels[split] = Rows(files), label_N
    class_names = names or tuple(map(str, range(int(labels["train"].max(initial=-1)) + 1)))
    parts = {split: labelled(stores[split], labels[split], excluded, len(class_names)) for split in stores}
    text = "the numbers in the column of labels" + (", with the names that the file tells" if names else "")
    return Listing(class_names, parts, labels=text)


def _opened(path: Path) -> OpenedParquet | None:
    """A file's labels and what else is known of it; one that cannot be read is reported."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UserError(f"{path}: parquet files are read by pyarrow, which is not installed: {INSTALL}") from error
    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            image = next((name for name in IMAGES if name in schema.names), None)
            label = next((name for name in LABELS if name in schema.names), None)
            if image is None or label is None or not arrow.types.is_integer(schema.field(label).type):
                raise UserError(
                    f"{path}: an {IMAGES[0]} and a {LABELS[0]} (a number) a row are needed; "
                    f"there: {', '.join(schema.names)}"
                )
            label_N = file.read(columns=[label], use_threads=False).column(0).fill_null(-1).to_numpy()
            names = _names((schema.metadata or {}).get(b"huggingface"), label)
            return OpenedParquet(file.metadata, image, label_N.astype(np.int64), names)
    except UserError:
        raise
    except (OSError, ValueError, NotImplementedError) as error:
        report([_unreadable(path, error)])
        return None


def _names(written: bytes | None, label: str) -> tuple[str, ...]:
    """The class names in what ``datasets`` writes into a file: JSON with a ``ClassLabel`` of the column."""
    try:
        return tuple(json.loads(written or b"{}")["info"]["features"][label]["names"])
    except (ValueError, KeyError, TypeError):  # another program's words, or a column without names
        return ()


def _unreadable(path: Path, error: Exception) -> Problem:
    return Problem("unreadable", path, f"cannot be read as parquet ({str(error).splitlines()[0]}): copy it again")
