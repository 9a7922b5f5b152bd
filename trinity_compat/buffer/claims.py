"""Leasing groups to a trainer step, and entering them in the ledger.

A lapsed lease stays its holder's until somebody else takes the groups: only then does the token fence
him out. The order of locks is claims before groups, everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import sqlalchemy as sa

from trinity_compat.buffer import groups, key_value, lease_watermark, media, queries, replay
from trinity_compat.buffer.api import ClaimLost
from trinity_compat.buffer.model import Claim
from trinity_compat.buffer.queries import query
from trinity_compat.common.crash_points import point
from trinity_compat.job.run_spec import ReplaySpec

_MADE_ANEW = "made anew"


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a claimer asks. ``request`` names the attempt, so that a repeated one finds its first claim."""

    request: str
    count: int
    owner: str
    step: int
    kind: str
    min_version: int | None
    lease_s: float
    replay: ReplaySpec | None


class TooFewGroups(Exception):
    """Fewer groups are ready than asked: the transaction rolls back."""


def promising(conn: sa.Connection, ask: ClaimRequest, *, now: float) -> bool:
    """Whether asking may give a claim: a trainer that polls an empty queue needs no write lock."""
    reused = ask.replay is not None and ask.replay.max_uses > 1
    if reused or conn.execute(query(queries.LAPSED), {"now": now}).first():
        return True
    bind = {"kind": ask.kind, "count": ask.count}
    return conn.execute(query(queries.READY_UPTO), bind).scalar_one() >= ask.count


def any_stale(conn: sa.Connection, *, kind: str, min_version: int) -> bool:
    bind = {"kind": kind, "min_version": min_version}
    return conn.execute(query(queries.ANY_STALE), bind).first() is not None


def take(conn: sa.Connection, ask: ClaimRequest, *, dialect: str, history: int, now: float) -> Claim:
    """Lease ``ask.count`` groups. Raises TooFew."""
    token = conn.execute(query(queries.CLAIM_OF_REQUEST), {"request": ask.request}).scalar_one_or_none()
    if token is None:
        give_back_lapsed(conn, dialect=dialect, now=now)
        token = _lease(conn, ask, dialect=dialect, history=history, now=now)
    return _read(conn, ask, token)


def _read(conn: sa.Connection, ask: ClaimRequest, token: int) -> Claim:
    bind = {"token": token}
    rows = conn.execute(query(queries.CLAIMED_GROUPS), bind).all()
    members = conn.execute(query(queries.CLAIMED_EXPERIENCES), bind).all()
    data = {row[0]: bytes(row[1]) for row in conn.execute(query(queries.CLAIMED_MEDIA), bind)}
    made = groups.assemble(rows, members)
    if data:
        made = tuple(replace(group, task=media.filled(group.task, data)) for group in made)
    return Claim(token=token, owner=ask.owner, step=ask.step, groups=made)


def _lease(conn: sa.Connection, ask: ClaimRequest, *, dialect: str, history: int, now: float) -> int:
    values = {"request": ask.request, "owner": ask.owner, "step": ask.step, "history": history}
    values |= {"until": now + ask.lease_s, "now": now}
    token = int(conn.execute(query(queries.NEW_CLAIM), values).scalar_one())
    take_them = _take_ready if ask.replay is None else _take_replayable
    if take_them(conn, ask, token, skip=queries.skip_locked(dialect), now=now) < ask.count:
        raise TooFewGroups
    point("inside claim")
    return token


def _take_ready(conn: sa.Connection, ask: ClaimRequest, token: int, *, skip: str, now: float) -> int:
    bind = {"kind": ask.kind, "token": token, "count": ask.count}
    return len(conn.execute(query(queries.TAKE_READY.format(skip_locked=skip)), bind).all())


def _take_replayable(conn: sa.Connection, ask: ClaimRequest, token: int, *, skip: str, now: float) -> int:
    asked = ask.replay or ReplaySpec()
    bind = {"kind": ask.kind, "token": token, "max_uses": asked.max_uses, "now": now}
    bind |= {"used_before": now - asked.cooldown_s, "min_version": ask.min_version or 0}
    bind |= {"since": replayable_since(conn)}
    return replay.take(conn, bind, ask.count, asked, skip=skip)


def replayable_since(conn: sa.Connection) -> int:
    """The history from which on groups are made as they are made now."""
    return int(key_value.read(conn, _MADE_ANEW, 0))


def replay_from(conn: sa.Connection, history: int) -> None:
    """Groups of earlier histories were made otherwise: none of them is trained again."""
    key_value.write(conn, _MADE_ANEW, history)


def drop_stale(conn: sa.Connection, *, kind: str, min_version: int) -> int:
    """Ready groups with an older token leave the queue; their tasks are to be made again."""
    bind = {"kind": kind, "min_version": min_version}
    tasks = conn.execute(query(queries.DROP_STALE), bind).scalars().all()
    if tasks and kind == "train":
        lease_watermark.lower(conn, min(tasks))
    return len(tasks)


def give_back_lapsed(conn: sa.Connection, *, dialect: str, now: float) -> None:
    lapsed = query(queries.LAPSED + queries.skip_locked(dialect))
    for token in conn.execute(lapsed, {"now": now}).scalars().all():
        end(conn, token, state="lapsed")
        conn.execute(query(queries.GIVE_BACK), {"token": token})


def end(conn: sa.Connection, token: int, *, state: str, step: int | None = None) -> bool:
    """Close an open claim; False when it isn't open any more."""
    bind = {"token": token, "state": state, "step": step}
    return conn.execute(query(queries.END_CLAIM), bind).rowcount == 1


def enter(conn: sa.Connection, claim: Claim, *, step: int, history: int, now: float) -> None:
    """The ledger entry. A repetition of the same step is no error; anything else raises ClaimLost."""
    if not end(conn, claim.token, state="trained", step=step):
        known = conn.execute(query(queries.CLAIM_STATE), {"token": claim.token}).one_or_none()
        if known is not None and tuple(known) == ("trained", step):
            return
        raise lost(claim, known[0] if known else "unknown")
    bind = {"token": claim.token, "step": step, "history": history, "now": now}
    conn.execute(query(queries.ENTER), bind)
    conn.execute(query(queries.SET_TRAINED), {"token": claim.token, "now": now})
    point("inside ledger")


def lost(claim: Claim, state: str) -> ClaimLost:
    why = {
        "lapsed": "its lease ran out and the groups were given to somebody else",
        "void": "a resume started a new history",
        "released": "it was released",
        "trained": "it is in the ledger already",
    }
    return ClaimLost(f"claim {claim.token} of {claim.owner}, step {claim.step}: {why.get(state, state)}")
