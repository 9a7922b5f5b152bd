"""The train batches that a dataset was changed by, one a step, in parts that both databases take."""

from __future__ import annotations

import sqlalchemy as sa

from trinity_compat.buffer import queries
from trinity_compat.buffer.queries import query

_PART = 64 << 20  # bytes; one value of SQLite's may have a billion, of PostgreSQL's as many


def keep(conn: sa.Connection, step: int, data: bytes, *, history: int) -> None:
    """In place of what was kept of the step."""
    conn.execute(query(queries.DROP_BATCH), {"step": step})
    for part, begin in enumerate(range(0, len(data), _PART)):
        piece = {"part": part, "data": data[begin : begin + _PART]}
        conn.execute(query(queries.KEEP_BATCH), {"step": step, "history": history, **piece})


def read(conn: sa.Connection, step: int) -> bytes | None:
    """None where there is none."""
    parts = conn.execute(query(queries.KEPT_BATCH), {"step": step}).scalars().all()
    return b"".join(map(bytes, parts)) or None


def history_of(conn: sa.Connection, step: int) -> int | None:
    """The history that kept it."""
    found: int | None = conn.execute(query(queries.BATCH_HISTORY), {"step": step}).scalar_one_or_none()
    return found
