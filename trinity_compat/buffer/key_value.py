"""The JSON values of ``job_state``, inside a transaction that the caller opened."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from trinity_compat.buffer import codec, queries
from trinity_compat.buffer.queries import query


def read(conn: sa.Connection, key: str, default: object = None) -> Any:
    """What stands under ``key``, else ``default``."""
    text = conn.execute(query(queries.GET_STATE), {"key": key}).scalar_one_or_none()
    return default if text is None else codec.from_json(text)


def write(conn: sa.Connection, key: str, value: object) -> None:
    """Store ``value``, in place of what stood there."""
    conn.execute(query(queries.SET_STATE), {"key": key, "value": codec.to_json(value)})
