"""A PostgreSQL server for those that ask for one."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from postgres import server


@pytest.fixture(scope="session")
def _server() -> Iterator[str]:
    with server() as url:
        yield url


@pytest.fixture
def postgres(_server: str) -> str:
    """The URL of an empty database."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(_server)
    with engine.begin() as connection:
        for word in ("DROP SCHEMA public CASCADE", "CREATE SCHEMA public"):
            connection.execute(sqlalchemy.text(word))
    engine.dispose()
    return _server
