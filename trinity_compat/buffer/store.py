"""``Buffer`` over SQL: each method is one transaction of statements from ``queries``."""

from __future__ import annotations

import itertools
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from trinity_compat.buffer import (
    claims,
    codec,
    groups,
    key_value,
    leases,
    live_tasks,
    queries,
    resume,
)
from trinity_compat.buffer import stream_position as positions
from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.database import Database
from trinity_compat.buffer.errors import HistoryChanged
from trinity_compat.buffer.groups import Row
from trinity_compat.buffer.model import (
    BufferState,
    Claim,
    EvalRequest,
    Experience,
    Group,
    LeaseHolder,
    Participant,
    PendingTasks,
    ResumeResult,
    TaskQuery,
    WeightVersion,
)
from trinity_compat.buffer.queries import query
from trinity_compat.buffer.stream_position import StreamPosition
from trinity_compat.common.crash_points import point
from trinity_compat.job.run_spec import ReplaySpec

T = TypeVar("T")
_ALL = 2**62
_MAX_LAG = 64  # tasks by which the stored watermark may lag behind


class SqlBuffer:
    """``Buffer`` over one database. ``clock`` (seconds) replaces the database's in tests."""

    def __init__(self, database: Database, *, clock: Callable[[], float] | None = None) -> None:
        self._db = database
        self._clock = clock

    # -- experiences ------------------------------------------------------------------------

    def put_groups(
        self, groups_: Sequence[Group], *, history: int | None = None, holder: LeaseHolder | None = None
    ) -> int:
        """Insert the groups whose keys are not live yet."""
        prepared = groups.prepare(groups_)

        def work(conn: sa.Connection) -> int:
            current = self._current_history(conn, history)
            new = groups.insert(conn, prepared, history=current, now=self._now(conn))
            if holder:
                leases.end_leases(conn, holder, groups_)
            return new

        stored = self._db.run(work) if prepared else 0
        point("after insert")
        return stored

    def claim_groups(
        self,
        count: int,
        *,
        owner: str,
        step: int,
        kind: str = "train",
        min_version: int | None = None,
        lease_s: float = 60.0,
        replay: ReplaySpec | None = None,
    ) -> Claim | None:
        """Lease groups after dropping stale ones; without a write lock while too few are ready."""
        attempt = uuid.uuid4().hex
        request = claims.ClaimRequest(attempt, count, owner, step, kind, min_version, lease_s, replay)
        if min_version is not None:
            self._drop_stale(kind, min_version)
        if not self._read(lambda conn: claims.may_succeed(conn, request, now=self._now(conn))):
            return None

        def work(conn: sa.Connection) -> Claim:
            history = self._lock_history(conn, queries.for_share)
            return claims.take(conn, request, dialect=self._db.dialect, history=history, now=self._now(conn))

        try:
            claim = self._db.run(work)
        except claims.TooFewGroups:
            return None
        point("after claim")
        return claim

    def _drop_stale(self, kind: str, min_version: int) -> None:
        if self._read(lambda conn: claims.has_stale(conn, kind=kind, min_version=min_version)):
            self._db.run(lambda conn: claims.drop_stale(conn, kind=kind, min_version=min_version))

    def renew(self, claim: Claim, *, lease_s: float = 60.0) -> None:
        """Move the lease's end. Raises ClaimLost."""

        def work(conn: sa.Connection) -> None:
            bind = {"token": claim.token, "until": self._now(conn) + lease_s}
            if conn.execute(query(queries.RENEW), bind).rowcount == 0:
                state = conn.execute(query(queries.CLAIM_STATE), {"token": claim.token}).one_or_none()
                raise claims.lost(claim, state[0] if state else "unknown")

        self._db.run(work)

    def mark_trained(self, claim: Claim, *, step: int) -> None:
        """Enter the claim in the ledger of the current history. Raises ClaimLost."""

        def work(conn: sa.Connection) -> None:
            history = self._lock_history(conn, queries.for_share)
            claims.enter(conn, claim, step=step, history=history, now=self._now(conn))

        self._db.run(work)
        point("after ledger")

    def release(self, claim: Claim) -> None:
        """Return the groups of an open claim."""

        def work(conn: sa.Connection) -> None:
            if claims.end(conn, claim.token, state="released"):
                conn.execute(query(queries.GIVE_BACK), {"token": claim.token})

        self._db.run(work)

    def groups(self, kind: str, *, limit: int | None = None) -> list[Group]:
        """Read live groups of ``kind`` with their experiences."""
        bind = {"kind": kind, "limit": _ALL if limit is None else limit}

        def work(conn: sa.Connection) -> list[Group]:
            rows = conn.execute(query(queries.KIND_GROUPS), bind).all()
            members = conn.execute(query(queries.KIND_EXPERIENCES), bind).all()
            return list(groups.assemble(rows, members))

        return self._read(work)

    def experiences(self, *, limit: int | None = None, after_id: int = 0) -> list[tuple[int, Experience]]:
        """Read experiences whose tokens are stored, by id."""
        bind = {"after_id": after_id, "limit": _ALL if limit is None else limit}
        rows = self._rows(queries.EXPERIENCES, bind)
        return [(row[1], groups.experience(row)) for row in rows]

    def depth(self, kind: str = "train") -> Mapping[str, int]:
        """Count groups by state; those of lapsed claims as ready or trained."""
        found = dict.fromkeys(("ready", "claimed", "trained", "stale", "void"), 0)

        def work(conn: sa.Connection) -> None:
            counts: Iterable[Row] = conn.execute(query(queries.DEPTH), {"kind": kind, "now": self._now(conn)})
            for state, count in counts:
                found[state] += count

        self._read(work)
        return found

    # -- the task stream ----------------------------------------------------------------------

    def missing_tasks(self, *, upto: int, limit: int) -> list[int]:
        """List tasks without a live group, and store the watermark where it lags far behind."""
        found = self._read(lambda conn: live_tasks.live(conn, live_tasks.TRAIN, first=0, upto=upto))
        if found.below - found.known >= _MAX_LAG:
            self._db.run(self._advance)
        return list(itertools.islice(found.missing(upto), limit))

    def _advance(self, conn: sa.Connection) -> live_tasks.LiveTasks:
        live_tasks.lock(conn, self._db.dialect)
        found = live_tasks.live(conn, live_tasks.TRAIN, first=0, upto=_ALL)
        live_tasks.advance(conn, found)
        return found

    def enter(self, holder: LeaseHolder, *, ready: bool, lease_s: float) -> None:
        """Store ``holder``'s token at its place."""
        self._db.run(lambda conn: leases.enter(conn, holder, ready=ready, until=self._now(conn) + lease_s))

    def keep(self, holder: LeaseHolder, *, lease_s: float) -> bool:
        """Move the end of the lease on the place; False if the token is not there any more."""
        return self._db.run(lambda conn: leases.keep(conn, holder, until=self._now(conn) + lease_s))

    def leave(self, holder: LeaseHolder) -> None:
        """Delete the place, by which its task leases end."""
        self._db.run(lambda conn: leases.leave(conn, holder))

    def places(self) -> Mapping[int, bool]:
        """Read the places with a holder."""
        return self._read(lambda conn: leases.places(conn, now=self._now(conn)))

    def free_tasks(self, asked: TaskQuery, *, limit: int) -> list[int]:
        """List free tasks, from the watermark on where one is stored and recent."""
        found = self._read(lambda conn: leases.free(conn, asked, limit=limit, now=self._now(conn)))
        if found is not None:
            return found

        def scan(conn: sa.Connection) -> list[int]:
            self._current_history(conn, None)  # a resume, which ends all leases, waits for this transaction
            live_tasks.lock(conn, self._db.dialect)
            return leases.free_after_scan(conn, asked, limit=limit, now=self._now(conn))

        return self._db.run(scan)

    def lease_tasks(self, asked: TaskQuery, *, limit: int, version: int, history: int) -> list[int]:
        """Choose free tasks and store their leases under the lock of all takers."""
        attempts = itertools.count()

        def work(conn: sa.Connection) -> list[int]:
            fully = next(attempts) > 0  # a first attempt may have been committed, its response lost
            self._current_history(conn, history)
            live_tasks.lock(conn, self._db.dialect)
            now = self._now(conn)
            return leases.take(conn, asked, limit=limit, version=version, now=now, fully=fully)

        taken = self._db.run(work)
        point("after lease")
        return taken

    def pending(self, holder: LeaseHolder, *, upto: int) -> PendingTasks:
        """Count stored tasks and leases of other holders."""
        return self._read(lambda conn: leases.pending(conn, holder, upto=upto, now=self._now(conn)))

    def settle_drawing(
        self, kept: Sequence[Group], *, kind: str, then: Mapping[str, object], history: int
    ) -> bool:
        """Turn the kept groups of a drawing into training groups, and void the others."""

        def work(conn: sa.Connection) -> bool:
            self._current_history(conn, history)
            return groups.settle(conn, kept, drawn=kind, then=then)

        return self._db.run(work)

    def position(self, *, step: int) -> StreamPosition:
        """Read the position, after moving the watermark."""

        def work(conn: sa.Connection) -> StreamPosition:
            history = self._lock_history(conn, queries.for_share)
            return positions.take(conn, step=step, history=history, missing=self._advance(conn).below)

        return self._db.run(work)

    # -- weights --------------------------------------------------------------------------------

    def publish_version(self, version: WeightVersion) -> None:
        """Store the version under the current history. Raises ValueError for an older one."""

        def work(conn: sa.Connection) -> None:
            history = self._lock_history(conn, queries.for_update)
            newest = conn.execute(query(queries.NEWEST_HERE), {"history": history}).scalar_one()
            if newest is not None and version.version < newest:
                raise ValueError(f"version {version.version} after {newest}: versions grow within a history")
            values = {name: getattr(version, name) for name in WeightVersion.__slots__}
            values |= {"history": history, "now": self._now(conn)}
            conn.execute(query(queries.PUBLISH), values)

        self._db.run(work)
        point("after publish")

    def latest_version(self) -> WeightVersion | None:
        """Read the newest version that is not void."""
        rows = self._rows(queries.LATEST_VERSION)
        return WeightVersion(*rows[0]) if rows else None

    def get_version(self, version: int) -> WeightVersion | None:
        """Read one version that is not void."""
        rows = self._rows(queries.ONE_VERSION, {"version": version})
        return WeightVersion(*rows[0]) if rows else None

    def glance(self) -> BufferState:
        """Read the state that explorers poll, in one statement."""
        history, finished, *others = self._rows(queries.GLANCE)[0]
        return BufferState(
            history=history,
            finished=bool(finished and codec.from_json(finished)),
            evaluation=EvalRequest(*others[:3]) if others[0] is not None else None,
            latest=WeightVersion(*others[3:]) if others[3] is not None else None,
        )

    # -- evaluation -----------------------------------------------------------------------------

    def request_eval(self, *, step: int, version: int) -> EvalRequest:
        """Store the request, or read that of the same history and step."""

        def work(conn: sa.Connection) -> EvalRequest:
            bind = {"history": self._lock_history(conn, queries.for_share), "step": step}
            conn.execute(query(queries.ASK_EVAL), {**bind, "version": version, "now": self._now(conn)})
            return EvalRequest(*conn.execute(query(queries.EVAL_AT), bind).one())

        return self._db.run(work)

    def next_eval(self) -> EvalRequest | None:
        """Read the oldest open request."""

        def work(conn: sa.Connection) -> EvalRequest | None:
            bind = {"history": self._history(conn)}
            row = conn.execute(query(queries.NEXT_EVAL), bind).one_or_none()
            return EvalRequest(*row) if row else None

        return self._read(work)

    def finish_eval(self, request: EvalRequest) -> None:
        """Store the time at which the request was done."""

        def work(conn: sa.Connection) -> None:
            conn.execute(query(queries.FINISH_EVAL), {"id": request.request_id, "now": self._now(conn)})

        self._db.run(work)

    def eval_done(self, request: EvalRequest) -> bool:
        """Read whether the request is done."""
        rows = self._rows(queries.EVAL_DONE, {"id": request.request_id})
        return bool(rows and rows[0][0])

    # -- liveness, state, metrics ---------------------------------------------------------------

    def beat(self, role: str, name: str, *, state: str, detail: Mapping[str, object] | None = None) -> None:
        """Write the heartbeat under the current history, with process id and host name."""
        values: dict[str, object] = {"role": role, "name": name, "state": state}
        values |= {"detail": codec.to_json(detail or {}), "pid": os.getpid(), "host": socket.gethostname()}

        def work(conn: sa.Connection) -> None:
            bind = {**values, "history": self._history(conn), "now": self._now(conn)}
            conn.execute(query(queries.BEAT), bind)

        self._db.run(work)

    def participants(self) -> list[Participant]:
        """Read the heartbeats of the current history."""

        def work(conn: sa.Connection) -> list[Participant]:
            bind = {"history": self._history(conn), "now": self._now(conn)}
            rows: Iterable[Row] = conn.execute(query(queries.PARTICIPANTS), bind)
            return [_participant(row) for row in rows]

        return self._read(work)

    def forget_participants(self) -> None:
        """Delete all heartbeats."""

        def work(conn: sa.Connection) -> None:
            conn.execute(query(queries.FORGET_PARTICIPANTS))

        self._db.run(work)

    def set_state(self, key: str, value: object) -> None:
        """Write one JSON value."""
        self._db.run(lambda conn: key_value.write(conn, key, value))

    def get_state(self, key: str, default: object = None) -> Any:
        """Read one JSON value."""
        return self._read(lambda conn: key_value.read(conn, key, default))

    def log_metrics(self, role: str, step: int, metrics: Mapping[str, float]) -> None:
        """Write the step's metrics under the current history."""
        values = {"role": role, "step": step, "metrics": codec.metrics_json(metrics, f"{role}'s step {step}")}

        def work(conn: sa.Connection) -> None:
            conn.execute(query(queries.LOG_METRICS), {**values, "history": self._history(conn)})

        self._db.run(work)

    def read_metrics(self, role: str, *, after_step: int = -1) -> list[tuple[int, dict[str, float]]]:
        """Read metrics that are not void; of several histories the newest one's."""
        rows = self._rows(queries.READ_METRICS, {"role": role, "after_step": after_step})
        return list({step: codec.numbers(text) for step, text in rows}.items())

    # -- resume ---------------------------------------------------------------------------------

    def history(self) -> int:
        """Read the current history's id."""
        return self._read(self._history)

    def reconcile(
        self, *, step: int, position: StreamPosition | None = None, remake: bool = False
    ) -> ResumeResult:
        """Start a new history under an exclusive lock."""

        def work(conn: sa.Connection) -> ResumeResult:
            self._lock_history(conn, queries.for_update)
            return resume.reconcile(conn, step=step, position=position, remake=remake, now=self._now(conn))

        return self._db.run(work)

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    # -- inside -----------------------------------------------------------------------------------

    def _read(self, work: Callable[[sa.Connection], T]) -> T:
        return self._db.run(work, write=False)

    def _rows(self, statement: str, bind: Mapping[str, object] | None = None) -> Sequence[Row]:
        return self._read(lambda conn: conn.execute(query(statement), dict(bind or {})).all())

    def _now(self, conn: sa.Connection) -> float:
        return self._clock() if self._clock else self._db.now(conn)

    def _history(self, conn: sa.Connection) -> int:
        return int(conn.execute(query(queries.HISTORY)).scalar_one())

    def _current_history(self, conn: sa.Connection, history: int | None) -> int:
        """Id of the current history, locked. Raises HistoryChanged if it is not ``history``."""
        current = self._lock_history(conn, queries.for_share)
        if history is not None and history != current:
            raise HistoryChanged(f"built in history {history}; a resume has started history {current}")
        return current

    def _lock_history(self, conn: sa.Connection, lock: Callable[[str], str]) -> int:
        """Id of the current history, which does not change until this transaction ends."""
        return int(conn.execute(query(queries.HISTORY + lock(self._db.dialect))).scalar_one())


def _participant(row: Row) -> Participant:
    role, name, pid, host, state, age_s, detail, beat_at = row
    return Participant(role, name, pid, host, state, age_s, codec.from_json(detail), beat_at)


def open_buffer(
    url: str, *, create: bool = True, retry_s: float = 60.0, clock: Callable[[], float] | None = None
) -> Buffer:
    """Open the buffer at ``sqlite:////abs/path.db`` or ``postgresql+psycopg://user@host/db``.

    Creates and migrates the schema (``create=False``: the buffer must exist). A transaction on a lost
    connection or a locked database is retried for ``retry_s`` seconds. Raises UserError for an invalid URL, a
    foreign or a newer database; BufferError when it stays unreachable; BufferFull on a full disk.
    """
    return SqlBuffer(Database(url, create=create, retry_s=retry_s), clock=clock)
