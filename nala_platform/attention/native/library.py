"""The C++ sources of this folder as a library: built once for each machine, kept in the user's cache, loaded.

What is kept is named by a hash of the sources, the flags, the compiler and the processor, so that a home folder shared
by unlike machines, or an update of any of them, never loads what was built for another.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from functools import cache
from pathlib import Path

import torch

from nala_platform.errors import UserError

SOURCES = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-fno-strict-aliasing", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
LINKING = ("-shared", "-fPIC", "-pthread")
COMPILERS = ("c++", "g++", "clang++")
_INSTEAD = "backend='chunked' needs none"


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


@torch.compiler.assume_constant_result
def found(is_double: bool, is_cosine: bool) -> bool:
    """Whether there is such a `library` or one can be built. Where a compiler fails, a warning says so once."""
    return _found(is_double, is_cosine)


@cache  # under a function of its own, as the tracer would look through it
def _found(is_double: bool, is_cosine: bool) -> bool:
    if missing() is not None:
        return False
    try:
        library(is_double, is_cosine)
    except UserError as error:
        warnings.warn(f"{error}; it is used now", stacklevel=3)
        return False
    return True


@cache
def library(is_double: bool, is_cosine: bool) -> ctypes.CDLL:
    """The kernels with sums of that type and that direction; the first call on a machine compiles, some seconds.

    Raises:
        UserError: there is no compiler, it fails, or what it made cannot be kept or loaded.
    """
    compiler = _compiler()
    defined = (f"-DSUMS={'double' if is_double else 'float'}", f"-DCOSINE={int(is_cosine)}")
    flags = (*FLAGS, *_own_processor(compiler), *defined, *LINKING)
    folder = _cache_folder()
    try:
        if folder is not None:
            return _loaded(_built(compiler, flags, folder))
        with tempfile.TemporaryDirectory(prefix="nala-") as temporary:  # built again by each process
            return _loaded(_built(compiler, flags, Path(temporary)))
    except OSError as error:  # a full disk, a folder from which nothing may be run
        raise UserError(f"backend='native' could not be kept or loaded: {error}; {_INSTEAD}") from error


@torch.compiler.assume_constant_result
def lanes_of(is_double: bool, is_cosine: bool) -> int:
    """Numbers of a vector of the `library`, to a multiple of which it pads."""
    return library(is_double, is_cosine).nala_lanes()


def missing() -> str | None:
    """Why there can be no library here, or None; nothing is compiled."""
    if os.name != "posix":
        return f"backend='native' is made for Linux and macOS; {_INSTEAD}"
    if not any(map(shutil.which, _candidates())):
        return (
            "backend='native' needs a C++ compiler on the path, or named by CXX (on Debian: apt-get install g++); "
            f"{_INSTEAD}"
        )
    return None


def _candidates() -> tuple[str, ...]:
    own = shlex.split(os.environ.get("CXX", ""))
    return (own[0],) if own else COMPILERS


def _compiler() -> str:
    why = missing()
    if why is not None:
        raise UserError(why)
    return next(found for name in _candidates() if (found := shutil.which(name)))


@cache
def _own_processor(compiler: str) -> tuple[str, ...]:
    """The flag that asks for all the instructions of this processor: compilers differ in its name."""
    for flag in ("-march=native", "-mcpu=native"):
        tried = subprocess.run(
            [compiler, flag, "-x", "c++", "-fsyntax-only", "-"], input="", capture_output=True, text=True, check=False
        )
        if tried.returncode == 0:
            return (flag,)
    return ()


def _cache_folder() -> Path | None:
    """Where libraries are kept, made if need be; None where there can be no such place."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base) / "nala" / "native"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a home that cannot be written, or none
        return None
    return folder if os.access(folder, os.W_OK) else None


def _built(compiler: str, flags: tuple[str, ...], folder: Path) -> Path:
    """The library, from the cache or made. Two processes that make it at once make the same."""
    path = folder / f"{_fingerprint(compiler, flags)}.so"
    if not path.is_file():
        handle, name = tempfile.mkstemp(prefix=path.stem, suffix=".part", dir=folder)
        os.close(handle)
        try:
            _compiled([compiler, *flags, str(SOURCES / "nala.cpp"), "-o", name])
            os.replace(name, path)  # never seen half-written
        finally:
            Path(name).unlink(missing_ok=True)
    return path


def _compiled(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise UserError(f"backend='native' could not be compiled by {command[0]}: {said}; {_INSTEAD}")


def _fingerprint(compiler: str, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for source in [*sorted(SOURCES.glob("*.h")), SOURCES / "nala.cpp"]:
        digest.update(source.read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    digest.update(repr((flags, compiler, version, _processor())).encode())
    return digest.hexdigest()[:32]


def _processor() -> str:
    """What tells unlike processors apart: the model and what it can do."""
    told = Path("/proc/cpuinfo")
    if not told.is_file():
        return f"{platform.machine()} {platform.processor()}"
    first = told.read_text().split("\n\n")[0].splitlines()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(line for line in first if line.startswith(wanted))


def _loaded(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    for function in (loaded.nala_forward, loaded.nala_backward):
        function.argtypes, function.restype = (ctypes.POINTER(Call),), ctypes.c_int
    loaded.nala_lanes.argtypes, loaded.nala_lanes.restype = (), ctypes.c_int
    return loaded
