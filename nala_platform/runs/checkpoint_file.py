"""Checkpoint files that tell whether they are whole.

A checkpoint is what `torch.save` writes: a ZIP archive, read by plain ``torch.load(path, weights_only=True)``. Its
archive comment, which torch ignores, holds a note: the SHA-256 of the file as torch wrote it (the comment still empty),
and where in the run it was saved. So one rename brings content and checksum together.
"""

import hashlib
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from nala_platform.errors import UserError, storage_error
from nala_platform.paths import shown
from nala_platform.runs.files import replacing

Note = dict[str, Any]
_COMMENT_LENGTH = 2  # bytes, at the very end of an archive without a comment
_CHUNK = 2**20


class DamagedError(UserError):
    """A checkpoint file is not what was written."""


def save(checkpoint: dict[str, Any], path: Path, note: Note) -> None:
    """Write ``checkpoint`` as the whole file ``path``, or nothing.

    Args:
        checkpoint: plain types and tensors.
        path: a file that exists is replaced.
        note: plain JSON values, readable by `read_note` without loading the tensors.

    Raises:
        StorageError: the disk is full, the folder read-only or gone.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            digest = _write_hashed(checkpoint, file)
            comment = json.dumps({"sha256": digest, **note}).encode()
            file.seek(-_COMMENT_LENGTH, io.SEEK_END)
            file.write(len(comment).to_bytes(_COMMENT_LENGTH, "little") + comment)
    except OSError as error:
        raise storage_error(f"the checkpoint {shown(path)}", error) from error


class _Hashing:
    """Counts what is written to a file into a SHA-256; keeps the error that torch would hide behind its own."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.sha256, self.error = file, hashlib.sha256(), cast("OSError | None", None)

    def write(self, data: Any) -> int:
        try:
            self.file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        self.file.flush()


def _write_hashed(checkpoint: dict[str, Any], file: BinaryIO) -> str:
    target = _Hashing(file)
    try:
        torch.save(checkpoint, cast(Any, target))
    except RuntimeError as error:
        raise target.error or error from error
    return target.sha256.hexdigest()


def read_note(path: Path) -> Note:
    """The note of a checkpoint; empty for one that another program wrote.

    Raises:
        DamagedError: the file is cut short or no archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.comment or b"{}")
    except (zipfile.BadZipFile, ValueError) as error:
        raise DamagedError(f"{shown(path)} is damaged: it is cut short, or no checkpoint at all") from error


def check(path: Path) -> Note:
    """Read the whole file, compare its checksum and return its note; one that another program wrote has none.

    Raises:
        DamagedError: a byte differs from what was written.
    """
    note = read_note(path)
    if "sha256" not in note:
        return note
    with zipfile.ZipFile(path) as archive:
        left = path.stat().st_size - len(archive.comment) - _COMMENT_LENGTH
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while left > 0 and (data := file.read(min(_CHUNK, left))):
            sha256.update(data)
            left -= len(data)
    sha256.update(bytes(_COMMENT_LENGTH))
    if sha256.hexdigest() != note["sha256"]:
        raise DamagedError(f"{shown(path)} is damaged: its SHA-256 is not the one that it was written with")
    return note


class CheckpointFile(TorchCheckpointIO):
    """Lightning's door to `save` and `check`."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a whole file with its note; see `save`."""
        ours = checkpoint.get("nala", {})
        note = {"step": checkpoint.get("global_step"), **ours.get("position", {}), **ours.get("note", {})}
        save(checkpoint, Path(path), note)

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        """Compare the checksum, then load.

        Raises:
            DamagedError: see `check`; or the file holds what only arbitrary code could load.
        """
        check(Path(path))
        try:
            return super().load_checkpoint(path, map_location=map_location, weights_only=weights_only)
        except (pickle.UnpicklingError, RuntimeError) as error:
            raise DamagedError(
                f"{shown(path)} cannot be loaded as a checkpoint: {str(error).splitlines()[0]}"
            ) from error
