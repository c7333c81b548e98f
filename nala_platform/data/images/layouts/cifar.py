"""CIFAR-10 and CIFAR-100, python and binary versions.

Shapes: N pictures.
"""

import codecs
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy._core.multiarray import _reconstruct  # what arrays are pickled by

from nala_platform.data.images.layouts.listing import Arrays, Listing, labelled
from nala_platform.data.problems import BadFileError, Excluded, Problem, report
from nala_platform.errors import UserError

EDGE = 32
BYTES = 3 * EDGE * EDGE  # of a picture: its red, green and blue planes
_MEND = "unpack the archive again"
_PICKLED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): codecs.encode,
}

Batch = tuple[np.ndarray, np.ndarray]  # pixels (N, 32, 32, 3) and labels (N,)


class Version(NamedTuple):
    """One published form of a data set.

    Attributes:
        name: for the protocol.
        folder: what its archive unpacks to.
        train: files of the training part.
        test: file of the test part.
        names: file of the class names.
        keys: in pickled files, of the labels and of the class names; none where files are binary.
        label_bytes: in binary files, before each picture; the last is the label.
    """

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    keys: tuple[bytes, bytes] | None = None
    label_bytes: int = 0


CIFAR10 = (
    Version(
        "python version",
        "cifar-10-batches-py",
        tuple(f"data_batch_{number}" for number in range(1, 6)),
        "test_batch",
        "batches.meta",
        keys=(b"labels", b"label_names"),
    ),
    Version(
        "binary version",
        "cifar-10-batches-bin",
        tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        "test_batch.bin",
        "batches.meta.txt",
        label_bytes=1,
    ),
)
CIFAR100 = (
    Version(
        "python version", "cifar-100-python", ("train",), "test", "meta", keys=(b"fine_labels", b"fine_label_names")
    ),
    Version("binary version", "cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", label_bytes=2),
)


def cifar10(root: Path, excluded: Excluded) -> Listing:
    """``data_batch_1 … 5`` and ``test_batch``, python or binary, in ``root`` or in the folder of the archive."""
    return _listing(root, excluded, CIFAR10, classes=10)


def cifar100(root: Path, excluded: Excluded) -> Listing:
    """``train`` and ``test``, python or binary, with their fine labels."""
    return _listing(root, excluded, CIFAR100, classes=100)


def _listing(root: Path, excluded: Excluded, versions: tuple[Version, ...], classes: int) -> Listing:
    version, folder = _present(root, versions)
    class_names = _class_names(folder / version.names, version)
    if len(class_names) != classes:
        raise UserError(f"{folder / version.names} has {len(class_names)} class names, not {classes}: {_MEND}")
    parts = {}
    for split, names in (("train", version.train), ("test", (version.test,))):
        paths = [folder / name for name in names if folder / name not in excluded]
        batches = {path: batch for path in paths if (batch := _batch(path, version)) is not None}
        pixels = [pixels for pixels, _ in batches.values()] or [np.zeros((0, EDGE, EDGE, 3), np.uint8)]
        labels = [labels for _, labels in batches.values()] or [np.zeros(0, np.int64)]
        store = Arrays(np.concatenate(pixels), [(path, len(labels)) for path, (_, labels) in batches.items()])
        parts[split] = labelled(store, np.concatenate(labels), excluded, classes)
    labels_are = f"those of the {version.name}, in the order of {version.names}"
    return Listing(class_names, parts, labels=labels_are)


def _present(root: Path, versions: tuple[Version, ...]) -> tuple[Version, Path]:
    for version in versions:
        for folder in (root, root / version.folder):
            if (folder / version.test).is_file() and (folder / version.names).is_file():
                return version, folder
    wanted = ", nor ".join(f"{version.test} and {version.names}" for version in versions)
    packed = sorted(path.name for path in root.glob("cifar-*.tar.gz"))
    raise UserError(
        f"data.root: {root} has no {wanted}, in {versions[0].folder} or itself: "
        + (f"unpack {packed[0]}" if packed else "name the unpacked folder")
    )


def _class_names(path: Path, version: Version) -> tuple[str, ...]:
    try:
        if version.keys is None:
            return tuple(path.read_text(encoding="utf-8").split())
        return tuple(name.decode() for name in _unpickled(path)[version.keys[1]])
    except (BadFileError, KeyError, AttributeError, TypeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} holds no class names ({error}): {_MEND}") from error


def _batch(path: Path, version: Version) -> Batch | None:
    """The pictures of a file; one that cannot be read is reported."""
    try:
        if not path.is_file():
            raise _bad("missing", path, f"no such file: {_MEND}")
        return _binary(path, version.label_bytes) if version.keys is None else _python(path, version.keys[0])
    except BadFileError as error:
        report([error.problem])
        return None


def _binary(path: Path, label_bytes: int) -> Batch:
    data = np.fromfile(path, dtype=np.uint8)
    record = label_bytes + BYTES
    if not len(data) or len(data) % record:
        raise _bad("wrong size", path, f"{len(data)} bytes are no number of records of {record}: {_MEND}")
    record_NR = data.reshape(-1, record)
    return _pictures(record_NR[:, label_bytes:]), record_NR[:, label_bytes - 1].astype(np.int64)


def _python(path: Path, key: bytes) -> Batch:
    batch = _unpickled(path)
    pixels, labels = batch.get(b"data"), batch.get(key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (BYTES,):
        raise _bad("wrong size", path, f"data is no array of bytes (N, {BYTES}): {_MEND}")
    if labels is None or len(labels) != len(pixels):
        there = "no" if labels is None else f"{len(labels)}"
        raise _bad("wrong size", path, f"{len(pixels)} pictures, but {there} {key.decode()}: {_MEND}")
    try:
        return _pictures(pixels), np.asarray(labels, dtype=np.int64)
    except (ValueError, TypeError) as error:
        raise _bad("wrong label", path, f"{key.decode()} are no numbers ({error}): {_MEND}") from error


def _pictures(plane_NB: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(plane_NB.reshape(-1, 3, EDGE, EDGE).transpose(0, 2, 3, 1))


def _unpickled(path: Path) -> dict[bytes, Any]:
    try:
        with path.open("rb") as file:
            found = _Unpickler(file, encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise anything
        raise _bad("unreadable", path, f"cannot be read ({' '.join(str(error).split())}): {_MEND}") from error
    if not isinstance(found, dict):
        raise _bad("unreadable", path, f"holds a {type(found).__name__} instead of a dict: {_MEND}")
    return found


class _Unpickler(pickle.Unpickler):
    """Makes arrays and plain values alone: a pickle could run any program."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PICKLED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file does")
        return _PICKLED[module, name]


def _bad(kind: str, path: Path, text: str) -> BadFileError:
    return BadFileError(Problem(kind, path, text))
