"""JSON values of ``job_state``, read and written inside the caller's transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from trinity_compat.buffer import codec, queries, typed_json
from trinity_compat.buffer.queries import query


@dataclass(frozen=True, slots=True)
class TransactionState:
    """The state as a transaction sees it, for ``StateCell``."""

    conn: sa.Connection

    def get_state(self, key: str) -> Any:
        """Read the value of ``key``; None without one."""
        text = self.conn.execute(query(queries.GET_STATE), {"key": key}).scalar_one_or_none()
        return None if text is None else typed_json.loads(text)

    def set_state(self, key: str, value: object) -> None:
        """Write ``value`` in place of an earlier one."""
        self.conn.execute(query(queries.SET_STATE), {"key": key, "value": codec.to_json(value)})
