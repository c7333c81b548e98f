"""Where a study lives: an Optuna journal file in the sweep's folder, or a database; and one lock over its changes.

The journal is Optuna's own. Its lock here is the kernel's (`flock`), which a killed process cannot leave behind, and
who takes it first cuts off a line that a killed process wrote half: Optuna would refuse the whole file for it.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import OptunaError
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from nala_platform.errors import UserError

from .patience import PatientStorage, patient
from .waiting import lock_file, wait_until

JOURNAL, LOCK = "journal.log", "sweep.lock"
_BLOCK = 4096


class JournalLock(BaseJournalFileLock):
    """Exclusive while a process writes to the journal, and gone with the process.

    Args:
        path: of the journal file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def acquire(self) -> bool:
        """Wait for the lock, then see to it that the file ends with a whole line.

        Raises:
            StorageError: another process does not let go of it.
        """
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            lock_file(handle, self._path)
            cut_torn_line(handle)
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle
        return True

    def release(self) -> None:
        """Let others in."""
        assert self._handle is not None
        os.close(self._handle)
        self._handle = None


def cut_torn_line(handle: int) -> int:
    """Cut off what stands behind the last end of a line; the number of bytes. Needs the lock."""
    size = end = os.fstat(handle).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        at = os.pread(handle, end - start, start).rfind(b"\n")
        if at >= 0:
            end = start + at + 1
            break
        end = start
    if end < size:
        os.ftruncate(handle, end)
        os.fsync(handle)
    return size - end


def open_storage(folder: Path, url: str | None) -> BaseStorage:
    """The study's storage: of ``url``, or the journal in ``folder``.

    Raises:
        UserError: the database cannot be reached, is of another version of Optuna, or its driver is not installed.
    """
    if url is None:
        path = folder / JOURNAL
        return JournalStorage(JournalFileBackend(str(path), lock_obj=JournalLock(path)))
    try:
        # a connection that the server closed meanwhile is replaced, not used
        storage = PatientStorage(url, engine_kwargs={"pool_pre_ping": True, "connect_args": _limits(url)})
        if storage.engine.dialect.name == "postgresql":
            event.listen(storage.engine, "connect", _limit_locks)
            storage.engine.dispose()  # the connections that were made without it
        return storage
    except ImportError as error:
        raise UserError(
            f"--storage {_hidden(url)} needs a driver: {error}. For PostgreSQL: pip install 'nala-platform[postgres]', "
            "and write the URL as postgresql+psycopg://user:password@host/database"
        ) from error
    # RuntimeError: another version's tables; ValueError: a port that is no number
    except (SQLAlchemyError, OptunaError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot open --storage {_hidden(url)}: {reason}") from error


def _limits(url: str) -> dict[str, Any]:
    """Let a server that is silent be one that is away: see `nala_platform.sweeps.patience`."""
    known = sqlalchemy.make_url(url)
    if known.get_backend_name() != "postgresql":
        return {}
    limits = {"connect_timeout": 30, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
    return {name: value for name, value in limits.items() if name not in known.query}


def _limit_locks(connection: Any, record: Any) -> None:
    """Let a statement that waits for a row that a stuck process holds fail, and be tried again for a while."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '30s'")
    connection.commit()


@contextmanager
def exclusive(storage: BaseStorage, folder: Path, name: str) -> Iterator[None]:
    """Inside, no other process of this study, on whatever machine it runs, is inside.

    A lock of the kernel's on a file in ``folder``, or an advisory lock of PostgreSQL's: both are gone with the process.

    Raises:
        StorageError: another process has been inside for too long.
    """
    engine: Any = getattr(storage, "engine", None)
    if engine is not None and engine.dialect.name == "postgresql":
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
        connection = patient(_lock)(engine, key)
        try:
            yield
        finally:
            connection.invalidate()  # the lock goes with the session, also with one that is lost already
            connection.close()
        return
    path = folder / LOCK
    if engine is not None and engine.dialect.name == "sqlite" and engine.url.database:
        path = Path(f"{engine.url.database}.lock")  # sweeps in several folders may share the file
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        lock_file(handle, path)
        yield
    finally:
        os.close(handle)


def _lock(engine: sqlalchemy.Engine, key: int) -> sqlalchemy.Connection:
    """A session that holds the lock."""
    connection = engine.connect()
    try:
        # of a machine that lost its power inside, the server learns in a minute, not in hours
        for setting, value in (("idle", 30), ("interval", 10), ("count", 3)):
            connection.execute(sqlalchemy.text(f"SET tcp_keepalives_{setting} = {value}"))
        attempt = sqlalchemy.text("SELECT pg_try_advisory_lock(:key)")
        wait_until(
            lambda: bool(connection.execute(attempt, {"key": key}).scalar()),
            "the study in the database",
            lambda: "another process of the sweep",
        )
    except BaseException:
        connection.invalidate()
        connection.close()
        raise
    return connection


def settled(url: str | None) -> str | None:
    """``url`` as it means the same from every folder.

    Raises:
        UserError: a kind of database that has no lock over the changes of a study.
    """
    try:
        read = None if url is None else sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):
        return url  # refused when it is opened
    if url is None or read is None:
        return url
    if read.get_backend_name() not in ("postgresql", "sqlite"):
        raise UserError(f"--storage {_hidden(url)}: a sweep's database is postgresql+psycopg://… (or sqlite:///FILE)")
    if read.get_backend_name() == "sqlite":
        if not read.database or read.database == ":memory:":
            raise UserError(f"--storage {url} names no file, so the workers could not see it: sqlite:///FILE")
        return f"sqlite:///{Path(read.database).absolute()}"
    return url


def quiet() -> None:
    """Optuna reports each of its steps; a sweep has its own table."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _hidden(url: str) -> str:
    """Without the password."""
    head, at, tail = url.rpartition("@")
    return f"{head.rpartition(':')[0]}:***@{tail}" if at and head.count(":") > 1 else url
