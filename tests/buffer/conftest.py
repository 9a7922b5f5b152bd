"""Every behavioural test runs on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import needs
import pytest
import sqlalchemy as sa
from buffer_postgres import PostgresServer, Unavailable
from buffer_samples import BACKENDS, Clock

from trinity_compat.buffer import open_buffer


@pytest.fixture(scope="session")
def server():
    try:
        running = PostgresServer(fsync=False)  # nothing here pulls the plug of the machine
    except Unavailable as reason:
        needs.lacking(str(reason))
    yield running
    running.close()


@pytest.fixture(params=BACKENDS)
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/experiences.db"
    return request.getfixturevalue("server").clean_database()


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
