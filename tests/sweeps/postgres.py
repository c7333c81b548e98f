"""A real PostgreSQL server on loopback, for the tests that want one."""

import os
import pwd
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_CONTROL: dict[int, list[str | None]] = {}  # of the server at a port


def _program(name: str) -> str | None:
    """Debian keeps the server's programs off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


def why_not() -> str | None:
    """Why there can be no server here; None: there can."""
    if _program("initdb") is None:
        return "PostgreSQL's server is not installed (Debian: apt-get install postgresql)"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed: pip install 'nala-platform[postgres]'"
    if os.getuid() == 0 and not any(entry.pw_name == "postgres" for entry in pwd.getpwall()):
        return "PostgreSQL does not run as root, and there is no user postgres"
    return None


@contextmanager
def server() -> Iterator[str]:
    """The URL of a new, empty database; the server ends with the block."""
    if reason := why_not():
        pytest.skip(reason)
    user = "postgres" if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="nala-postgres-"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        if user:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        quiet = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        options = ["-A", "trust", "-U", "nala", "--no-sync"]
        subprocess.run([_program("initdb"), "-D", str(folder / "data"), *options], check=True, **quiet)
        run = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off"
        control = _CONTROL[port] = [_program("pg_ctl"), "-D", str(folder / "data"), "-w", "-o", run]
        subprocess.run([*control, "-l", str(folder / "log"), "start"], check=True, **quiet)
        try:
            yield f"postgresql+psycopg://nala@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=False, **quiet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def restart(url: str, seconds: float) -> None:
    """Stop the server of ``url`` at once, as a crash does; after ``seconds``, for which nobody waits, it starts."""
    control = _CONTROL[int(url.rpartition(":")[2].partition("/")[0])]
    how = {
        "user": "postgres" if os.getuid() == 0 else None,
        "cwd": "/",
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    subprocess.run([*control, "-m", "immediate", "stop"], check=True, **how)
    words = shlex.join([*control, "start"])
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; exec {words}"], **how)
