"""Files that are whole or not there at all, and what a result depends on."""

from __future__ import annotations

import json
import math
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from nala_platform.errors import StorageError, storage_error

if TYPE_CHECKING:  # what has no pictures to write need not load it
    from matplotlib.figure import Figure

_PARTIAL = ".partial-"
_REPORTED = ("torch", "lightning", "torchmetrics", "timm", "transformers", "segmentation-models-pytorch", "numpy")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of ``path`` when the block ends well, and vanishes when it does not.

    A reader, or a machine that loses power, sees the old content or the new, never a part: the new file is on the disk
    before it gets the name, and so is the name before this returns.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}{_PARTIAL}")
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside, ``path`` is written: an error of the operating system is a `StorageError` that names it.

    Raises:
        StorageError: the disk is full, or the folder is read-only or gone.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(path, error) from error


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a whole file, text as UTF-8; see `replacing`.

    Raises:
        StorageError: it cannot be written.
    """
    with writing(path), replacing(path) as file:
        # a file's name may hold bytes that are no UTF-8, which Python keeps as surrogates
        file.write(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write ``value`` as JSON that any reader takes: NaN and infinities, which JSON lacks, become ``null``."""
    write_atomic(path, json.dumps(_finite(value), indent=2, allow_nan=False, default=str) + "\n")


def save_figure(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Write ``figure`` as a whole PNG file, or nothing."""
    buffer = BytesIO()
    figure.savefig(buffer, dpi=dpi, format="png")
    write_atomic(path, buffer.getvalue())


def give_name(path: Path, name: Path) -> None:
    """Let ``name`` mean the file ``path`` too, whatever it meant before; on one disk, without a copy where it can."""
    temporary = name.with_name(f".{name.name}{_PARTIAL}{os.getpid()}")
    with writing(name):
        temporary.unlink(missing_ok=True)
        try:
            os.link(path, temporary)
        except OSError:  # a file system without hard links
            write_atomic(name, path.read_bytes())
            return
        # rename does nothing where both names mean one file already, and would leave the temporary one behind
        os.replace(temporary, name)
        temporary.unlink(missing_ok=True)
        _sync_folder(name.parent)


def remove_partial(folder: Path) -> None:
    """Remove what processes that were killed while they wrote have left in ``folder``."""
    for path in folder.glob(f".*{_PARTIAL}*"):
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def versions() -> dict[str, str]:
    """Versions that a result depends on: Python, this platform, and the libraries that compute."""
    found = {"python": platform.python_version(), "nala-platform": _version("nala-platform")}
    return found | {name: _version(name) for name in _REPORTED}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
