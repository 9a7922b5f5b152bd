"""Start of a new history from a checkpoint, with which ledger and queue are made to agree."""

from __future__ import annotations

import sqlalchemy as sa

from trinity_compat.buffer import claims, lease_watermark, queries
from trinity_compat.buffer.model import ResumeResult
from trinity_compat.buffer.queries import query
from trinity_compat.buffer.stream_position import StreamPosition, adopt, is_ours
from trinity_compat.common.crash_points import point

_NOTHING = -1  # every step and version came after it


def reconcile(
    conn: sa.Connection, *, step: int, position: StreamPosition | None, remake: bool, now: float
) -> ResumeResult:
    """The caller holds the history's row. Order matters: first claims, then uses, then groups."""
    ours = position is None or is_ours(conn, step=step, position=position)
    history = int(conn.execute(query(queries.NEW_HISTORY), {"step": step, "now": now}).scalar_one())
    conn.execute(query(queries.SET_COUNTER), {"name": "history", "value": history})
    conn.execute(query(queries.END_ALL_CLAIMS))
    conn.execute(query(queries.GIVE_ALL_BACK))
    conn.execute(query(queries.END_ALL_LEASES))
    conn.execute(query(queries.VOID_DRAWN))
    lost = {"history": history, "step": step if ours else _NOTHING}
    conn.execute(query(queries.VOID_USES), lost)
    conn.execute(query(queries.RECOUNT_USES), {"history": history})
    conn.execute(query(queries.TRAINED_TO_READY))
    made_upto = _NOTHING if remake else lost["step"]
    if remake:
        claims.replay_from(conn, history)
    conn.execute(query(queries.VOID_EXPERTS))
    voided = conn.execute(query(queries.VOID_GROUPS), {"step": made_upto}).scalars().all()
    if voided:
        lease_watermark.lower(conn, min(voided))
    conn.execute(query(queries.VOID_VERSIONS), lost)
    conn.execute(query(queries.VOID_METRICS if ours else queries.VOID_ALL_METRICS), lost)
    if position is not None and not ours:
        adopt(conn, step=step, history=history, position=position)
    lease_watermark.forget(conn)  # last: all transactions that drop groups lock these before the counters
    point("inside resume")
    return ResumeResult(
        history=history,
        ready_again=conn.execute(query(queries.COUNT_READY)).scalar_one(),
        voided=len(voided),
        kept=conn.execute(query(queries.COUNT_TRAINED)).scalar_one(),
    )
