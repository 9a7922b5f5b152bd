"""Every behavioural test runs on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import itertools

import pytest
import sqlalchemy as sa
from buffer_postgres import PostgresServer, Unavailable
from buffer_samples import BACKENDS, Clock

from trinity_compat.buffer import open_buffer

_serial = itertools.count()


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
