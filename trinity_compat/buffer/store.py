"""The buffer: the operations that explorer, trainer and supervisor use, over SQLite or PostgreSQL.

Every method is one transaction of statements from ``queries``. Guarantee: delivery at least once, effect
exactly once per optimizer step: a group is in the ledger once per (history, use), and a resume voids what
lost weights produced.
"""

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
    lease_watermark,
    leases,
    live_tasks,
    queries,
    typed_json,
)
from trinity_compat.buffer import stream_position as positions
from trinity_compat.buffer.database import RETRY_S, Database
from trinity_compat.buffer.errors import HistoryChanged
from trinity_compat.buffer.groups import Row
from trinity_compat.buffer.key_value import TransactionState
from trinity_compat.buffer.lease_watermark import ExplorerReadiness
from trinity_compat.buffer.model import (
    BufferState,
    Claim,
    EvalRequest,
    Experience,
    Group,
    LeaseHolder,
    LoadedVersion,
    Participant,
    PendingTasks,
    ResumeResult,
    TaskQuery,
    TokenScores,
    WeightVersion,
)
from trinity_compat.buffer.queries import query
from trinity_compat.buffer.stream_position import StreamPosition
from trinity_compat.common.crash_points import point
from trinity_compat.job.run_spec import ReplaySpec
from trinity_compat.job.state_cell import FINISHED

T = TypeVar("T")
_ALL = 2**62
_MAX_LAG = 64  # tasks by which the stored watermark may lag behind


class Buffer:
    """The store of groups, tasks, weight versions and state, over one database.

    All methods may be called from several processes at once, and repeated after a crash. ``clock`` (seconds)
    replaces the database's in tests.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float] | None = None) -> None:
        self._db = database
        self._clock = clock

    # -- experiences ------------------------------------------------------------------------

    def put_groups(
        self, groups_: Sequence[Group], *, history: int | None = None, holder: LeaseHolder | None = None
    ) -> int:
        """Store complete groups in one transaction and return the number of new ones.

        A group whose key is live (neither void nor stale) is left as it is. ``history`` is the one in which
        the groups were built: HistoryChanged is raised once a resume has started another. The leases that
        ``holder`` has on these tasks end in the same transaction. Raises BufferFull on a full disk, with
        nothing written, and ValueError for a group without experiences or with arrays of unequal lengths.
        """
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
        """Lease exactly ``count`` ready groups, or return None when fewer are ready.

        Order: priority (highest first), then task number, so a rebuilt group takes its task's place.
        With ``min_version``, ready groups whose oldest token is older are dropped (state "stale") and their
        tasks are missing again. Groups of a lapsed lease are ready again without a call. With ``replay`` the
        order is that of its priorities (``buffer/replay.py``), and trained groups compete with ready ones.
        """
        attempt = uuid.uuid4().hex
        request = claims.ClaimRequest(attempt, count, owner, step, kind, min_version, lease_s, replay)
        if min_version is not None:
            stale = {"kind": kind, "min_version": min_version}
            if self._rows(queries.ANY_STALE, stale):
                self._db.run(lambda conn: claims.drop_stale(conn, kind=kind, min_version=min_version))
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

    def renew(self, claim: Claim, *, lease_s: float = 60.0) -> None:
        """Prolong the lease, also a lapsed one whose groups were not claimed again. Raises ClaimLost."""

        def work(conn: sa.Connection) -> None:
            bind = {"token": claim.token, "until": self._now(conn) + lease_s}
            if conn.execute(query(queries.RENEW), bind).rowcount == 0:
                state = conn.execute(query(queries.CLAIM_STATE), {"token": claim.token}).one_or_none()
                raise claims.lost(claim, state[0] if state else "unknown")

        self._db.run(work)

    def mark_trained(self, claim: Claim, *, step: int) -> None:
        """Enter the claim's groups in the ledger under ``step``; a repeated call enters nothing.

        Raises ClaimLost. Call before the checkpoint of ``step`` is written.
        """

        def work(conn: sa.Connection) -> None:
            history = self._lock_history(conn, queries.for_share)
            claims.enter(conn, claim, step=step, history=history, now=self._now(conn))

        self._db.run(work)
        point("after ledger")

    def keep_token_scores(self, scores: Sequence[TokenScores]) -> None:
        """Keep them with their answers, in place of those of an earlier use."""
        arrays = ("logprobs", "entropies")
        rows = [
            {"group_id": each.group_id, "run": each.run}
            | {name: codec.pack_floats(getattr(each, name)) for name in arrays}
            for each in scores
        ]
        self._db.run(lambda conn: conn.execute(query(queries.PUT_TOKEN_SCORES), rows))

    def release(self, claim: Claim) -> None:
        """Return the groups, ready and in their old order. No-op for ended claims."""

        def work(conn: sa.Connection) -> None:
            if claims.end(conn, claim.token, state="released"):
                conn.execute(query(queries.GIVE_BACK), {"token": claim.token})

        self._db.run(work)

    def groups(self, kind: str, *, limit: int | None = None) -> list[Group]:
        """Live groups of one kind in task order, e.g. all of ``eval:7``."""
        bind = {"kind": kind, "limit": _ALL if limit is None else limit}

        def work(conn: sa.Connection) -> list[Group]:
            rows = conn.execute(query(queries.KIND_GROUPS), bind).all()
            members = conn.execute(query(queries.KIND_EXPERIENCES), bind).all()
            return list(groups.assemble(rows, members))

        return self._read(work)

    def experiences(self, *, limit: int | None = None, after_id: int = 0) -> list[tuple[int, Experience]]:
        """(experience id, Experience) pairs in order of id."""
        bind = {"after_id": after_id, "limit": _ALL if limit is None else limit}
        rows = self._rows(queries.EXPERIENCES, bind)
        return [(row[1], groups.experience(row)) for row in rows]

    def depth(self, kind: str = "train") -> Mapping[str, int]:
        """Number of groups of one kind by state: ready, claimed, trained, stale, void."""
        found = dict.fromkeys(("ready", "claimed", "trained", "stale", "void"), 0)

        def work(conn: sa.Connection) -> None:
            counts: Iterable[Row] = conn.execute(query(queries.DEPTH), {"kind": kind, "now": self._now(conn)})
            for state, count in counts:
                found[state] += count

        self._read(work)
        return found

    def has_ready(self, count: int) -> bool:
        """Return whether ``count`` groups are ready for a step."""
        bind = {"kind": "train", "count": count}
        return bool(self._rows(queries.READY_UPTO, bind)[0][0] >= count)

    # -- the task stream ----------------------------------------------------------------------

    def missing_tasks(self, *, upto: int, limit: int) -> list[int]:
        """Task numbers below ``upto`` without a live group, in order: those to be sampled (again)."""
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
        """Take ``holder``'s place among several explorers for ``lease_s``; its former holder loses all tasks.

        ``ready``: the holder takes tasks from now on.
        """
        self._db.run(lambda conn: leases.enter(conn, holder, ready=ready, until=self._now(conn) + lease_s))

    def keep(self, holder: LeaseHolder, *, lease_s: float) -> bool:
        """Prolong the lease on the place. False once another holder has the place."""
        return self._db.run(lambda conn: leases.keep(conn, holder, until=self._now(conn) + lease_s))

    def leave(self, holder: LeaseHolder) -> None:
        """End the leases on the place and its tasks."""
        self._db.run(lambda conn: leases.leave(conn, holder))

    def places(self) -> Mapping[int, bool]:
        """Places with a holder, and readiness of each."""
        return self._read(lambda conn: ExplorerReadiness.read(conn, now=self._now(conn))).ready

    def free_tasks(self, request: TaskQuery, *, limit: int) -> list[int]:
        """The first tasks that the holder may take, in order."""
        found = self._read(lambda conn: leases.free(conn, request, limit=limit, now=self._now(conn)))
        if found is not None:
            return found

        def scan(conn: sa.Connection) -> list[int]:
            self._current_history(conn, None)  # a resume, which ends all leases, waits for this transaction
            live_tasks.lock(conn, self._db.dialect)
            return leases.free_after_scan(conn, request, limit=limit, now=self._now(conn))

        return self._db.run(scan)

    def lease_tasks(self, request: TaskQuery, *, limit: int, version: int, history: int) -> list[int]:
        """Lease up to ``limit`` free tasks, in order, until the holder loses its place.

        Without ``by_place`` the holder gets fewer where other ready explorers would have less than an equal
        part. ``version`` of the weights is stored for ``pending``. Raises HistoryChanged.
        """
        attempts = itertools.count()

        def work(conn: sa.Connection) -> list[int]:
            fully = next(attempts) > 0  # a first attempt may have been committed, its response lost
            self._current_history(conn, history)
            live_tasks.lock(conn, self._db.dialect)
            now = self._now(conn)
            return leases.take(conn, request, limit=limit, version=version, now=now, fully=fully)

        taken = self._db.run(work)
        point("after lease")
        return taken

    def pending(self, holder: LeaseHolder, *, upto: int) -> PendingTasks:
        """Stored training tasks below ``upto``, and leases of other holders."""
        return self._read(lambda conn: leases.pending(conn, holder, upto=upto, now=self._now(conn)))

    def settle_drawing(self, kept: Sequence[Group], *, step: int, position: int, history: int) -> bool:
        """End the drawing ``draw:STEP`` in one transaction; False if it was ended before.

        Its groups ``kept``, which have their training tasks and keys already, become training groups, the
        others void; the next step's draws begin at ``position``. Raises HistoryChanged.
        """

        def work(conn: sa.Connection) -> bool:
            self._current_history(conn, history)
            if ended := groups.settle(conn, kept, drawn=f"draw:{step}"):
                positions.FIRST_TASK.at(step + 1).set(TransactionState(conn), position)
            return ended

        return self._db.run(work)

    def position(self, *, step: int) -> StreamPosition:
        """Position in the task stream after ``step``, for its checkpoint, so that another database can go on.

        Call between ``mark_trained`` of ``step`` and the next one.
        """

        def work(conn: sa.Connection) -> StreamPosition:
            history = self._lock_history(conn, queries.for_share)
            return positions.take(conn, step=step, history=history, missing=self._advance(conn).below)

        return self._db.run(work)

    # -- weights --------------------------------------------------------------------------------

    def publish_version(self, version: WeightVersion) -> None:
        """Announce a version.

        Versions grow within a history; a smaller one raises ValueError, the same one again (or one of an
        earlier history) is replaced.
        """

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

    def note_loaded(self, loaded: LoadedVersion) -> list[str]:
        """Record a load; return workers that received the same and hold something else in the same layout."""

        def work(conn: sa.Connection) -> list[str]:
            values = {name: getattr(loaded, name) for name in LoadedVersion.__slots__}
            values |= {"history": self._history(conn), "now": self._now(conn)}
            conn.execute(query(queries.NOTE_LOADED), values)
            return list(conn.execute(query(queries.HELD_OTHERWISE), values).scalars())

        return self._db.run(work)

    def latest_version(self) -> WeightVersion | None:
        """The newest version that no resume has voided."""
        rows = self._rows(queries.LATEST_VERSION)
        return WeightVersion(*rows[0]) if rows else None

    def get_version(self, version: int) -> WeightVersion | None:
        """One version, if published and not voided."""
        rows = self._rows(queries.ONE_VERSION, {"version": version})
        return WeightVersion(*rows[0]) if rows else None

    def glance(self) -> BufferState:
        """History, state ``FINISHED``, oldest open evaluation and newest version, in one statement."""
        history, finished, *others = self._rows(queries.GLANCE, {"finished": FINISHED.key})[0]
        return BufferState(
            history=history,
            finished=bool(finished and typed_json.loads(finished)),
            evaluation=EvalRequest(*others[:3]) if others[0] is not None else None,
            latest=WeightVersion(*others[3:]) if others[3] is not None else None,
        )

    # -- evaluation -----------------------------------------------------------------------------

    def request_eval(self, *, step: int, version: int) -> EvalRequest:
        """Request an evaluation of ``version``; a repeated (history, step) returns the first request."""

        def work(conn: sa.Connection) -> EvalRequest:
            bind = {"history": self._lock_history(conn, queries.for_share), "step": step}
            conn.execute(query(queries.ASK_EVAL), {**bind, "version": version, "now": self._now(conn)})
            return EvalRequest(*conn.execute(query(queries.EVAL_AT), bind).one())

        return self._db.run(work)

    def finish_eval(self, request: EvalRequest) -> None:
        """Close the request. Call once all groups of kind ``eval:<request_id>`` are stored."""

        def work(conn: sa.Connection) -> None:
            conn.execute(query(queries.FINISH_EVAL), {"id": request.request_id, "now": self._now(conn)})

        self._db.run(work)

    def eval_done(self, request: EvalRequest) -> bool:
        """Return whether ``finish_eval`` was called."""
        rows = self._rows(queries.EVAL_DONE, {"id": request.request_id})
        return bool(rows and rows[0][0])

    # -- liveness, state, metrics ---------------------------------------------------------------

    def beat(self, role: str, name: str, *, state: str, detail: Mapping[str, object] | None = None) -> None:
        """Write the heartbeat of (role, name), with the database's clock."""
        values: dict[str, object] = {"role": role, "name": name, "state": state}
        values |= {"detail": codec.to_json(detail or {}), "pid": os.getpid(), "host": socket.gethostname()}

        def work(conn: sa.Connection) -> None:
            bind = {**values, "history": self._history(conn), "now": self._now(conn)}
            conn.execute(query(queries.BEAT), bind)

        self._db.run(work)

    def newest_lengths(self, limit: int) -> list[tuple[int, int]]:
        """Return the tokens of the newest answers to train on, each with those of its prompt."""
        rows = self._rows(queries.NEWEST_LENGTHS, {"limit": limit})
        return [(int(answer), int(prompt)) for answer, prompt in rows if answer and prompt is not None]

    def newest_group_age_s(self) -> float | None:
        """Seconds since a group was last stored, of any kind; None before the first."""

        def work(conn: sa.Connection) -> float | None:
            return conn.execute(query(queries.NEWEST_GROUP_AGE), {"now": self._now(conn)}).scalar()

        return self._read(work)

    def participants(self, *, writable: bool = False) -> list[Participant]:
        """All processes with a heartbeat in the current history.

        ``writable`` reads them while this process holds SQLite's write lock, to judge their silence: while
        another program locks the database, no heartbeat arrives, and this read waits too.
        """

        def work(conn: sa.Connection) -> list[Participant]:
            bind = {"history": self._history(conn), "now": self._now(conn)}
            rows: Iterable[Row] = conn.execute(query(queries.PARTICIPANTS), bind)
            return [
                Participant(role, name, pid, host, state, age_s, typed_json.loads(detail), beat_at)
                for role, name, pid, host, state, age_s, detail, beat_at in rows
            ]

        return self._db.run(work, write=writable)

    def forget_participants(self) -> None:
        """Delete all heartbeats, at the start of a job whose earlier processes have ended.

        A process that lives nevertheless reappears with its next heartbeat.
        """

        def work(conn: sa.Connection) -> None:
            conn.execute(query(queries.FORGET_PARTICIPANTS))

        self._db.run(work)

    def set_state(self, key: str, value: object) -> None:
        """Store a JSON value under ``key``."""
        self._db.run(lambda conn: TransactionState(conn).set_state(key, value))

    def get_state(self, key: str) -> Any:
        """Read the value that ``set_state`` stored; None without one."""
        return self._read(lambda conn: TransactionState(conn).get_state(key))

    def log_metrics(self, role: str, step: int, metrics: Mapping[str, float]) -> None:
        """Store one step's metrics, in place of earlier ones of the same (role, step)."""
        values = {"role": role, "step": step, "metrics": codec.metrics_json(metrics, f"{role}'s step {step}")}

        def work(conn: sa.Connection) -> None:
            conn.execute(query(queries.LOG_METRICS), {**values, "history": self._history(conn)})

        self._db.run(work)

    def read_metrics(
        self, role: str, *, after_step: int = -1, newest: int = 0
    ) -> list[tuple[int, dict[str, float]]]:
        """(step, metrics) in order of step, of the current history and those that it continues.

        A resume's first validation is logged at the step that the checkpoint is of: the step has both.
        ``newest``: so many rows, the last ones, instead of those after a step.
        """

        def work(conn: sa.Connection) -> list[tuple[int, dict[str, float]]]:
            if newest:
                bind = {"role": role, "newest": newest}
                rows: Iterable[Row] = conn.execute(query(queries.NEWEST_METRICS), bind).all()[::-1]
            else:
                rows = conn.execute(query(queries.READ_METRICS), {"role": role, "after_step": after_step})
            found: dict[int, dict[str, float]] = {}
            for step, text in rows:
                found[step] = found.get(step, {}) | codec.numbers(text)
            return list(found.items())

        return self._read(work)

    # -- resume ---------------------------------------------------------------------------------

    def history(self) -> int:
        """Id of the current history, from 1."""
        return self._read(self._history)

    def reconcile(
        self, *, step: int, position: StreamPosition | None = None, remake: bool = False
    ) -> ResumeResult:
        """Start a new history that continues from the checkpoint of ``step`` (0: from the start).

        Groups trained after it, or untrained, are ready again if their max_model_version ≤ step and void
        otherwise; groups trained at or before it stay trained; later weight versions are void, and open
        claims are lost. A group whose tokens were pruned is void instead of ready. ``ready_again`` counts
        the groups that are ready now.

        ``position`` is that of the checkpoint, None for a checkpoint of this database. Where it belongs to
        another database, or to a branch that this one has left, all groups, uses, versions and metrics
        become void and the tasks go on at the position. ``remake``: groups that were not trained up to the
        checkpoint become void whatever their weights, and no trained group is replayed.
        """

        def work(conn: sa.Connection) -> ResumeResult:
            self._lock_history(conn, queries.for_update)
            return _reconcile(conn, step=step, position=position, remake=remake, now=self._now(conn))

        return self._db.run(work)

    def is_on_line(self, *, step: int, position: StreamPosition) -> bool:
        """Return whether the newest weights came from the checkpoint of ``step``: no resume has left it."""
        return self._read(lambda conn: positions.is_ours(conn, step=step, position=position))

    def close(self) -> None:
        """Close the database connections."""
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


def open_buffer(
    url: str, *, create: bool = True, retry_s: float = RETRY_S, clock: Callable[[], float] | None = None
) -> Buffer:
    """Open the buffer at ``sqlite:////abs/path.db`` or ``postgresql+psycopg://user@host/db``.

    Creates and migrates the schema (``create=False``: the buffer must exist). A transaction on a lost
    connection or a locked database is retried for ``retry_s`` seconds. Raises UserError for an invalid URL, a
    foreign or a newer database; BufferError when it stays unreachable; BufferFull on a full disk.
    """
    return Buffer(Database(url, create=create, retry_s=retry_s), clock=clock)


_NOTHING = -1  # every step and version came after it


def _reconcile(
    conn: sa.Connection, *, step: int, position: StreamPosition | None, remake: bool, now: float
) -> ResumeResult:
    """Start a history; the caller holds the history's row. Order matters: claims, uses, groups."""
    ours = position is None or positions.is_ours(conn, step=step, position=position)
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
        claims.REPLAY_SINCE.set(TransactionState(conn), history)
    conn.execute(query(queries.VOID_EXPERTS))
    voided = conn.execute(query(queries.VOID_GROUPS), {"step": made_upto}).scalars().all()
    if voided:
        lease_watermark.lower(conn, min(voided))
    conn.execute(query(queries.VOID_VERSIONS), lost)
    conn.execute(query(queries.VOID_METRICS if ours else queries.VOID_ALL_METRICS), lost)
    if position is not None and not ours:
        positions.adopt(conn, step=step, history=history, position=position)
    conn.execute(query(queries.NOTE_VOIDED), {"count": len(voided), "history": history})
    lease_watermark.forget(conn)  # last: all transactions that drop groups lock these before the counters
    point("inside resume")
    return ResumeResult(
        history=history,
        ready_again=conn.execute(query(queries.COUNT_READY)).scalar_one(),
        voided=len(voided),
        kept=conn.execute(query(queries.COUNT_TRAINED)).scalar_one(),
    )
