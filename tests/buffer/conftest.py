"""Every behavioural test runs on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import itertools

import pytest
import sqlalchemy as sa
from buffer_postgres import PostgresServer, Unavailable

from trinity_compat.buffer import open_buffer

BACKENDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]
_serial = itertools.count()


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture(scope="session")
def server():
    try:
        running = PostgresServer()
    except Unavailable as reason:
        pytest.skip(str(reason))
    yield running
    running.close()


@pytest.fixture(params=BACKENDS)
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/experiences.db"
    return request.getfixturevalue("server").new_database(f"t{next(_serial)}")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def buffer(url, clock):
    opened = open_buffer(url, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def sql(url):
    """Run one SELECT on the buffer's database, as a user with any SQL client would."""
    engine = sa.create_engine(url)

    def rows(statement: str) -> list[tuple]:
        with engine.connect() as conn:
            return [tuple(row) for row in conn.execute(sa.text(statement))]

    yield rows
    engine.dispose()
