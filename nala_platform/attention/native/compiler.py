"""Which C++ compiler there is, how it is called, and what it compiles for."""

import os
import platform
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from nala_platform.errors import UserError

FLAGS = (
    *("-std=c++17", "-O3", "-fno-strict-aliasing", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    *("-fvisibility=hidden", "-shared", "-fPIC", "-pthread"),
)
INSTEAD = "backend='chunked' needs no compiler"
_USUAL = ("c++", "g++", "clang++")


def missing() -> str | None:
    """Why there can be no compiler here, or None; nothing is compiled."""
    if os.name != "posix":
        return f"backend='native' is made for Linux and macOS; {INSTEAD}"
    if not _found():
        return (
            "backend='native' needs a C++ compiler on the path, or named by CXX (on Debian: apt-get install g++); "
            f"{INSTEAD}"
        )
    return None


def command() -> tuple[str, ...]:
    """The compiler and the options that CXX gives it.

    Raises:
        UserError: see ``missing``.
    """
    why = missing()
    if why is not None:
        raise UserError(why)
    return _found()


def _found() -> tuple[str, ...]:
    own = os.environ.get("CXX", "").strip()
    if not own:
        return next(((path,) for name in _USUAL if (path := shutil.which(name))), ())
    whole = shutil.which(own)  # a path with spaces
    if whole is not None:
        return (whole,)
    name, *options = shlex.split(own)
    path = shutil.which(name)
    return () if path is None else (path, *options)


def told(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """What a command says; no output of any encoding ends this."""
    return subprocess.run(words, input="", capture_output=True, encoding="utf-8", errors="replace", check=False)


@cache
def own_processor(compiler: tuple[str, ...]) -> tuple[str, ...]:
    """The flag that asks for all the instructions of this processor: compilers differ in its name."""
    for flag in ("-march=native", "-mcpu=native"):
        if told((*compiler, flag, "-x", "c++", "-fsyntax-only", "-")).returncode == 0:
            return (flag,)
    return ()


def processor() -> str:
    """What tells unlike processors apart: the model and what it can do."""
    described = Path("/proc/cpuinfo")
    if described.is_file():
        first = described.read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
        wanted = ("model name", "flags", "Features", "CPU part")
        return "\n".join(line for line in first if line.startswith(wanted))
    if sys.platform == "darwin":
        return told(("sysctl", "-n", "machdep.cpu.brand_string")).stdout
    return f"{platform.machine()} {platform.processor()}"
