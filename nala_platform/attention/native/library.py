"""The C++ sources of this folder as a library: built once for each machine, kept in the user's cache, loaded.

What is kept is named by a hash of the sources, the flags, the compiler and the processor, so that a home folder shared
by unlike machines, or an update of any of them, never loads what was built for another. One process compiles; others
that need the same library meanwhile wait for it.
"""

import ctypes
import hashlib
import logging
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from nala_platform.attention.native.compiler import FLAGS, INSTEAD, command, missing, own_processor, processor, told
from nala_platform.errors import UserError

SOURCES = Path(__file__).parent
ABANDONED = 24 * 3600
"""Seconds after which a half-built file is nobody's."""
PATIENCE = 600.0
"""Seconds that a process waits for another's build, which takes some twenty; then it builds for itself."""

_logger = logging.getLogger(__name__)


class Tensor(ctypes.Structure):
    """``Tensor`` of ``call.h``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("batch", "head", "token", "dtype")),
    )


class Call(ctypes.Structure):
    """``Call`` of ``call.h``."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("batch", "heads", "queries", "keys", "size", "values", "is_causal", "span", "threads")
        ),
        *((name, Tensor) for name in ("query", "key", "value", "out", "query_grad", "key_grad", "value_grad")),
        *((name, ctypes.c_void_p) for name in ("cos", "sin", "mask", "counts", "low", "high")),
        *((name, ctypes.c_double) for name in ("gate_slope", "key_power", "eps")),
        ("states", ctypes.c_void_p),
        ("state_numbers", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("bound_grads", "start_sums", "start_keys", "end_sums", "end_keys")),
    )


class Kind(NamedTuple):
    """Which of the libraries: the type of sums, and the direction."""

    is_double: bool
    is_cosine: bool

    @classmethod
    def of(cls, query: torch.Tensor, direction: str) -> "Kind":
        return cls(query.dtype == torch.float64, direction == "cosine")


@torch.compiler.assume_constant_result
def found(is_double: bool, is_cosine: bool) -> bool:
    """Whether there is such a `library` or one can be built. Where a compiler fails, a warning says so once."""
    return _found(is_double, is_cosine)


@cache  # under a function of its own, as the tracer would look through it
def _found(is_double: bool, is_cosine: bool) -> bool:
    try:
        if missing() is not None:
            return False
        library(is_double, is_cosine)
    except (UserError, ValueError) as error:  # a CXX that is no command line
        warnings.warn(f"{error}; it is used now", stacklevel=3)
        return False
    return True


@torch.compiler.assume_constant_result
def lanes_of(is_double: bool, is_cosine: bool) -> int:
    """Numbers of a vector of the `library`, to a multiple of which it pads."""
    return library(is_double, is_cosine).nala_lanes()


@cache
def library(is_double: bool, is_cosine: bool) -> ctypes.CDLL:
    """The kernels with sums of that type and that direction; the first call on a machine compiles, some seconds.

    Raises:
        UserError: there is no compiler, it fails, or what it made cannot be kept or loaded.
    """
    try:
        compiler = command()
        defined = (f"-DSUMS={'double' if is_double else 'float'}", f"-DCOSINE={int(is_cosine)}")
        build = (*compiler, *FLAGS, *own_processor(compiler), *defined, str(SOURCES / "nala.cpp"))
        name = f"{_fingerprint(compiler, build)}.so"
        folder = _cache_folder()
        if folder is not None:
            return _from_cache(build, folder / name)
        with tempfile.TemporaryDirectory(prefix="nala-") as temporary:  # built again by each process
            return _built(build, Path(temporary) / name, kept=False)
    except UserError:
        raise
    except (OSError, ValueError) as error:  # a full disk, a folder from which nothing may be run, a CXX without sense
        raise UserError(f"backend='native' could not be built or loaded: {error}; {INSTEAD}") from error


def _from_cache(build: tuple[str, ...], path: Path) -> ctypes.CDLL:
    found = _whole(path)
    if found is not None:
        return found
    with _exclusive(path.parent):
        found = _whole(path)  # another process has built it meanwhile
        if found is not None:
            return found
        path.unlink(missing_ok=True)  # damaged: a disk was full, a machine went down
        for part in path.parent.glob("*.part"):  # of builds that were killed
            if part.stat().st_mtime < time.time() - ABANDONED:
                part.unlink(missing_ok=True)
        return _built(build, path, kept=True)


def _whole(path: Path) -> ctypes.CDLL | None:
    if not path.is_file():
        return None
    try:
        return _loaded(path)
    except OSError:
        return None


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system releases with the process; without locks there, all build the same."""
    import fcntl  # not on Windows, where there is no such backend

    handle = os.open(folder, os.O_RDONLY)  # the folder itself: a lock file would have to be removed by somebody
    try:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:  # a file system without locks
                break
            else:
                break
        yield
    finally:
        os.close(handle)


def _built(build: tuple[str, ...], path: Path, *, kept: bool) -> ctypes.CDLL:
    """Compile to another name first: the file is never seen half-written."""
    place = f"kept in {path.parent}" if kept else "not kept, as no folder for it can be written: set XDG_CACHE_HOME"
    # a warning, since those are shown without any configuration
    _logger.warning("nala: compiling the C++ kernels for this processor, some seconds, once (%s)", place)
    handle, name = tempfile.mkstemp(prefix=path.stem, suffix=".part", dir=path.parent)
    os.close(handle)
    try:
        _compiled((*build, "-o", name))
        with open(name, "rb") as made:  # not the handle: a linker begins a file of its own
            os.fsync(made.fileno())
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
    return _loaded(path)


def _compiled(build: tuple[str, ...]) -> None:
    done = told(build)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise UserError(f"backend='native' could not be compiled by {build[0]}: {said}; {INSTEAD}")


def _fingerprint(compiler: tuple[str, ...], build: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for source in [*sorted(SOURCES.glob("*.h")), SOURCES / "nala.cpp"]:
        digest.update(source.read_bytes())
    options = build[:-1]  # not the place of the sources
    digest.update(repr((options, told((*compiler, "--version")).stdout, processor())).encode())
    return digest.hexdigest()[:32]


def _cache_folder() -> Path | None:
    """Where libraries are kept, made if need be; None where there can be no such place."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base) / "nala" / "native"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a home that cannot be written, or none
        return _temporary_folder()
    return folder if os.access(folder, os.W_OK) else _temporary_folder()


def _temporary_folder() -> Path | None:
    """The user's own folder among temporary files, into which nobody else can put a library."""
    try:
        folder = Path(tempfile.gettempdir()) / f"nala-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077
    return folder if is_own and os.access(folder, os.W_OK) else None


def _loaded(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path.absolute()))
    for function in (loaded.nala_forward, loaded.nala_backward):
        function.argtypes, function.restype = (ctypes.POINTER(Call),), ctypes.c_int
    loaded.nala_lanes.argtypes, loaded.nala_lanes.restype = (), ctypes.c_int
    return loaded
