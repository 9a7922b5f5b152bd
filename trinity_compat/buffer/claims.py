"""Leasing groups to a trainer step, and entering them in the ledger.

A lapsed claim stays valid until another one takes its groups: only then does the token fence its owner out.
The order of locks is claims before groups, everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import sqlalchemy as sa

from trinity_compat.buffer import groups, lease_watermark, media, queries, replay
from trinity_compat.buffer.errors import ClaimLost
from trinity_compat.buffer.key_value import TransactionState
from trinity_compat.buffer.model import Claim
from trinity_compat.buffer.queries import query
from trinity_compat.common.crash_points import point
from trinity_compat.job.run_spec import ReplaySpec
from trinity_compat.job.state_cell import StateCell

REPLAY_SINCE = StateCell[int]("made anew")  # history from which on groups may be replayed


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Arguments of a claim. ``request`` identifies the attempt, so that a retry finds its first claim."""

    request: str
    count: int
    owner: str
    step: int
    kind: str
    min_version: int | None
    lease_s: float
    replay: ReplaySpec | None


class TooFewGroups(Exception):
    """Fewer groups are ready than requested: the transaction rolls back."""


def may_succeed(conn: sa.Connection, request: ClaimRequest, *, now: float) -> bool:
    """Check without a write lock if enough groups may be ready, for a trainer that polls an empty queue."""
    reused = request.replay is not None and request.replay.max_uses > 1
    if reused or conn.execute(query(queries.LAPSED), {"now": now}).first():
        return True
    bind = {"kind": request.kind, "count": request.count}
    return conn.execute(query(queries.READY_UPTO), bind).scalar_one() >= request.count


def take(conn: sa.Connection, request: ClaimRequest, *, dialect: str, history: int, now: float) -> Claim:
    """Lease ``request.count`` groups. Raises TooFewGroups."""
    token = conn.execute(query(queries.CLAIM_OF_REQUEST), {"request": request.request}).scalar_one_or_none()
    if token is None:
        end_lapsed(conn, dialect=dialect, now=now)
        values = {
            "request": request.request,
            "owner": request.owner,
            "step": request.step,
            "history": history,
            "until": now + request.lease_s,
            "now": now,
        }
        token = int(conn.execute(query(queries.NEW_CLAIM), values).scalar_one())
        take_groups = _take_ready if request.replay is None else _take_replayable
        if take_groups(conn, request, token, skip=queries.skip_locked(dialect), now=now) < request.count:
            raise TooFewGroups
        point("inside claim")
    bind = {"token": token}
    rows = conn.execute(query(queries.CLAIMED_GROUPS), bind).all()
    members = conn.execute(query(queries.CLAIMED_EXPERIENCES), bind).all()
    data = {row[0]: bytes(row[1]) for row in conn.execute(query(queries.CLAIMED_MEDIA), bind)}
    made = groups.assemble(rows, members, groups.claimed_experience)
    if data:
        made = tuple(replace(group, task=media.filled(group.task, data)) for group in made)
    return Claim(token=token, owner=request.owner, step=request.step, groups=made)


def _take_ready(conn: sa.Connection, request: ClaimRequest, token: int, *, skip: str, now: float) -> int:
    bind = {"kind": request.kind, "token": token, "count": request.count}
    return len(conn.execute(query(queries.TAKE_READY.format(skip_locked=skip)), bind).all())


def _take_replayable(conn: sa.Connection, request: ClaimRequest, token: int, *, skip: str, now: float) -> int:
    spec = request.replay or ReplaySpec()
    bind = {"kind": request.kind, "token": token, "max_uses": spec.max_uses, "now": now}
    bind |= {"used_before": now - spec.cooldown_s, "min_version": request.min_version or 0}
    bind |= {"since": REPLAY_SINCE.get(TransactionState(conn)) or 0}
    return replay.take(conn, bind, request.count, spec, skip=skip)


def drop_stale(conn: sa.Connection, *, kind: str, min_version: int) -> int:
    """Drop ready groups with a token older than ``min_version``; their tasks become missing."""
    bind = {"kind": kind, "min_version": min_version}
    tasks = conn.execute(query(queries.DROP_STALE), bind).scalars().all()
    if tasks and kind == "train":
        lease_watermark.lower(conn, min(tasks))
    return len(tasks)


def end_lapsed(conn: sa.Connection, *, dialect: str, now: float) -> None:
    """End claims whose lease has lapsed, and return their groups."""
    lapsed = query(queries.LAPSED + queries.skip_locked(dialect))
    for token in conn.execute(lapsed, {"now": now}).scalars().all():
        end(conn, token, state="lapsed")
        conn.execute(query(queries.GIVE_BACK), {"token": token})


def end(conn: sa.Connection, token: int, *, state: str, step: int | None = None) -> bool:
    """End an open claim; False if it has ended already."""
    bind = {"token": token, "state": state, "step": step}
    return conn.execute(query(queries.END_CLAIM), bind).rowcount == 1


def enter(conn: sa.Connection, claim: Claim, *, step: int, history: int, now: float) -> None:
    """Write the ledger entries of a claim. No-op for a repetition of the same step; else ClaimLost."""
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
    """Error that says why the claim is not open."""
    why = {
        "lapsed": "its lease lapsed and another trainer claimed the groups",
        "void": "a resume started a new history",
        "released": "it was released",
        "trained": "it is in the ledger already",
    }
    return ClaimLost(f"claim {claim.token} of {claim.owner}, step {claim.step}: {why.get(state, state)}")
