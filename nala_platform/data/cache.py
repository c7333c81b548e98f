"""Folders of files that are expensive to make: whole or not there, made once, found damaged when they are.

A folder holds the files that its maker wrote and ``manifest.json``, which states their sizes and digests. It is made
under another name and renamed, so that nobody sees a part of it; processes that want the same one wait for each other.
What a killed process leaves is swept, or gone on with by makers that can.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from nala_platform.errors import StorageError, UserError

FORMAT = 2  # raised when what makers write changes its meaning
MANIFEST = "manifest.json"
WHOLE = 256 << 20  # bytes
BLOCK, BLOCKS = 1 << 20, 64

Make = Callable[[Path], dict[str, Any]]


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/nala``, or ``~/.cache/nala``.

    Raises:
        UserError: there is no home folder.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "nala"
    except RuntimeError as error:
        raise UserError(
            "no folder to keep data in: this user has no home folder; set XDG_CACHE_HOME, HOME or "
            "--data.source.cache_dir"
        ) from error


def digest(path: Path, *, whole: int = WHOLE, block: int = BLOCK, blocks: int = BLOCKS) -> str:
    """SHA-256 of a file up to ``whole`` bytes; of a larger one, of its size and blocks that are spread evenly.

    Args:
        path: the file.
        whole: bytes, ``block`` or more.
        block: bytes of a block.
        blocks: two or more.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= whole:
            return hashlib.file_digest(file, "sha256").hexdigest()
        state = hashlib.sha256(str(size).encode())
        for index in range(blocks):
            file.seek(index * (size - block) // (blocks - 1))
            state.update(file.read(block))
    return state.hexdigest()


def key(**facts: Any) -> str:
    """A name for what the facts (plain values) determine together with `FORMAT`: 32 hexadecimal digits.

    Examples:
        >>> key(a=1) == key(a=1) != key(a=2)
        True
    """
    text = json.dumps(facts | {"format": FORMAT}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def kept(folder: Path, make: Make, *, unfinished: Literal["swept", "continued"] = "swept") -> dict[str, Any]:
    """The facts about ``folder``, which is there and whole afterwards.

    Args:
        folder: where; all that its content depends on is in its name.
        make: writes files, none in folders of its own, into the folder that it is given, and returns facts as plain
            values, which the manifest keeps.
        unfinished: what becomes of the files of a ``make`` that was killed or found no room: ``continued``, the next
            ``make`` is given the folder with them, and must find out what they are worth. Of one that ended in a
            `UserError` nothing is left.

    Raises:
        UserError: the folder cannot be written.
        StorageError: ``make`` says that there is no room.
    """
    with contextlib.suppress(_DamagedError, FileNotFoundError):
        return _facts(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder) as alone:
            staging = _staging(folder) if alone and unfinished == "continued" else None
            for left in folder.parent.glob(f".{folder.name}.*") if alone else ():
                if left != staging:
                    shutil.rmtree(left, ignore_errors=True)  # of a process that was killed; the lock is no folder
            return _made(folder, make, staging)
    except StorageError:
        raise
    except OSError as error:
        if error.filename is not None and not _is_within(error.filename, folder.parent):
            raise  # of what ``make`` reads
        raise UserError(
            f"cannot keep {folder}: {error.strerror or error}; make room there, or name another folder by "
            "--data.source.cache_dir"
        ) from error


def _is_within(path: Any, folder: Path) -> bool:
    """Whether a path lies in the folder, or is one that the folder lies in and that had to be made."""
    place = Path(os.fsdecode(path)).absolute()
    return place.is_relative_to(folder.absolute()) or folder.absolute().is_relative_to(place)


def _staging(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.unfinished"


def _made(folder: Path, make: Make, staging: Path | None) -> dict[str, Any]:
    try:
        return _facts(folder)  # made by another process while this one waited
    except FileNotFoundError:
        pass
    except _DamagedError as error:
        print(f"nala: note: {folder} is damaged ({error}): it is made again", file=sys.stderr)
    if staging is None:
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        temporary.chmod(0o755)
    else:
        temporary = staging
        temporary.mkdir(exist_ok=True)
    try:
        facts = make(temporary)
        files = {path.name: [path.stat().st_size, digest(path)] for path in sorted(temporary.iterdir())}
        manifest = json.dumps({"format": FORMAT, "files": files, "facts": facts})
        (temporary / MANIFEST).write_text(manifest, encoding="utf-8")
        for path in (*temporary.iterdir(), temporary):
            _to_disk(path)
        _put(temporary, folder)
    except UserError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        if staging is None:
            shutil.rmtree(temporary, ignore_errors=True)
    return _facts(folder)


def _put(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:  # a folder is there
        with contextlib.suppress(_DamagedError, FileNotFoundError):
            _facts(folder)  # where locks do nothing, another process has just made it
            return
        shutil.rmtree(folder, ignore_errors=True)  # who has it open keeps what is open
        temporary.rename(folder)
    _to_disk(folder.parent)


class _DamagedError(Exception):
    """The folder is there, but not whole."""


def _facts(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files, facts = manifest["files"], manifest["facts"]
        for name, (size, right) in files.items():
            path = folder / name
            if path.stat().st_size != size:
                raise _DamagedError(f"{name} has {path.stat().st_size} bytes instead of {size}")
            if digest(path) != right:
                raise _DamagedError(f"the content of {name} has changed")
    except FileNotFoundError as error:
        raise _DamagedError(f"{Path(error.filename).name} is missing") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _DamagedError(f"{MANIFEST} is not what it should be") from error
    return facts


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """One process at a time; the system lets go of the lock of a process that dies. Gives whether there is a lock.

    Where there are no locks (Windows, some network drives) processes work beside each other; the rename keeps the
    result whole.
    """
    try:
        import fcntl
    except ImportError:
        yield False
        return
    with (folder.parent / f".{folder.name}.lock").open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            alone = False
        else:
            alone = True
        yield alone


def _to_disk(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # a folder cannot be opened there
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
