"""Leases by which several explorers share one stream of tasks.

An explorer holds a place while it renews the lease on it, and holds a task while the task's lease has a token
that holds a place. So the lapse of one row frees all tasks of a dead explorer, and a successor at the same
place, with another token, frees them at once. Leases avoid duplicate work; that no task is *stored* twice is
guaranteed by the keys of groups alone.

The search for free tasks begins at the watermark of ``lease_watermark``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import filterfalse, islice

import sqlalchemy as sa

from trinity_compat.buffer import lease_watermark, live_tasks, queries, stream_position
from trinity_compat.buffer.lease_watermark import ExplorerReadiness, Watermark
from trinity_compat.buffer.model import Group, LeaseHolder, PendingTasks, TaskQuery
from trinity_compat.buffer.queries import of_ids, query
from trinity_compat.common.crash_points import point

CHUNK = 256  # tasks of the first range that is searched; each next range is twice as long


def enter(conn: sa.Connection, holder: LeaseHolder, *, ready: bool, until: float) -> None:
    """Store the holder's token at its place, in place of another's."""
    bind = {"place": holder.place, "token": holder.token, "ready": int(ready), "until": until}
    conn.execute(query(queries.ENTER_PLACE), bind)


def leave(conn: sa.Connection, holder: LeaseHolder) -> None:
    """Delete the place, which ends all task leases of its token."""
    conn.execute(query(queries.LEAVE_PLACE), {"token": holder.token})


def keep(conn: sa.Connection, holder: LeaseHolder, *, until: float) -> bool:
    """Prolong the lease on the place; False when another token has it."""
    return conn.execute(query(queries.KEEP_PLACE), {"token": holder.token, "until": until}).rowcount == 1


@dataclass(frozen=True, slots=True)
class TaskShare:
    """Leases and live groups that decide which tasks the holder of ``asked`` may take.

    ``held``: tokens by task; ``places``: readiness by place; ``living``: fingerprint of the living explorers.
    """

    request: TaskQuery
    held: Mapping[int, str]
    places: Mapping[int, bool]
    live: live_tasks.LiveTasks
    living: int = 0

    def free(self) -> Iterator[int]:
        """Tasks that the holder may take and does not have, in order."""
        missing, held = self.live.missing(self.request.upto), self.held
        token, have = self.request.holder.token, self.request.have
        if self.request.by_place:
            candidates = self._own() if all_places_held(self.request, self.places) else missing
            return (number for number in candidates if number not in have and self._may_take(number))
        forgotten = [number for number, holder in held.items() if holder == token and number not in have]
        kept = held.keys() - forgotten if forgotten else held
        others = filterfalse(kept.__contains__, missing)  # not a generator: a large job has thousands
        return filterfalse(have.__contains__, others)

    def _own(self) -> Iterator[int]:
        """Missing tasks of the holder's own part, and those of other parts that it has leased.

        While every place is held it may take no others.
        """
        by, token, live = self.request.by_place, self.request.holder.token, self.live
        place = self.request.holder.place
        part = range(live.below + (place - live.below) % by, self.request.upto, by)
        foreign = (number for number, holder in self.held.items() if holder == token and number % by != place)
        taken_over = sorted(number for number in foreign if live.below <= number < self.request.upto)
        return filterfalse(live.beyond.__contains__, merge(part, taken_over))

    def _may_take(self, number: int) -> bool:
        request = self.request
        if (token := self.held.get(number)) is not None:
            return token == request.holder.token
        place = number % request.by_place
        return place == request.holder.place or place not in self.places

    def take(self, limit: int) -> list[int]:
        """The first free tasks, ``limit`` at most.

        Where fewer are free than all ready explorers could take, each gets an equal part.
        """
        if self.request.by_place:
            return list(islice(self.free(), limit))
        holder, have = self.request.holder, self.request.have
        own = sum(number in have for number, token in self.held.items() if token == holder.token)
        others = sum(token != holder.token for token in self.held.values())
        ready = _ready(self.places, holder)
        enough = (limit + own) * ready - others - own  # with so many free tasks only the limit counts
        free = list(islice(self.free(), max(limit, enough)))
        return free[: min(limit, equal_part(len(free) + others + own, ready, own))]

    def next(self, taken: Sequence[int]) -> int:
        """The first free task after ``taken``, which were the first ones."""
        return next(islice(self.free(), len(taken), None), self.request.upto)


def equal_part(tasks_: int, ready: int, have: int) -> int:
    """Number of tasks that an explorer with ``have`` lacks for an equal part of ``tasks_``."""
    return max(0, -(-tasks_ // ready) - have)


def all_places_held(request: TaskQuery, places: Mapping[int, bool]) -> bool:
    """Return whether every place has a holder, so that each takes tasks of its own part only."""
    return places.keys() >= set(range(request.by_place))


def _ready(places: Mapping[int, bool], holder: LeaseHolder) -> int:
    return len({place for place, ready in places.items() if ready} | {holder.place})


def scan(conn: sa.Connection, request: TaskQuery, *, now: float) -> TaskShare:
    """Read all leases and live groups that concern the query.

    The order matters: living explorers first, so that one that leaves later is noticed by the next query; and
    leases before groups, so that a task whose lease ends in between has its group.
    """
    living = ExplorerReadiness.read(conn, now=now)
    bind: dict[str, object] = {"kind": request.kind, "now": now}
    sql = queries.HELD
    if request.by_place and all_places_held(request, living.ready):  # then only the own part's, and own ones
        sql, own = queries.HELD_IN_PART, request.holder
        bind |= {"by": request.by_place, "place": own.place, "token": own.token}
    held = {task: token for task, token, _ in conn.execute(query(sql), bind)}
    live = live_tasks.live(conn, request.kind, first=request.first, upto=request.upto)
    return TaskShare(request, held, living.ready, live, living.fingerprint)


@dataclass(frozen=True, slots=True)
class WatermarkView:
    """The tasks from the watermark on, read in ranges instead of a full scan."""

    conn: sa.Connection
    request: TaskQuery
    watermark: Watermark
    places: ExplorerReadiness
    now: float

    @property
    def is_valid(self) -> bool:
        """Return whether no task below the watermark is free, but those of ``again``."""
        is_alive = self.request.holder.token in self.places.tokens
        return is_alive and self.watermark.holds(self.places, now=self.now)

    def free(self) -> Iterator[int]:
        """Tasks that the holder may take, in order; reads ranges as they are consumed."""
        yield from self.again()
        adopted = frozenset(stream_position.adopted(self.conn).beyond)
        first, size = self.watermark.first, CHUNK
        while first < self.request.upto:
            upto = min(first + size, self.request.upto)
            bind = {"kind": live_tasks.TRAIN, "first": first, "upto": upto, "now": self.now}
            held = {task: token for task, token, _ in self.conn.execute(query(queries.HELD_BETWEEN), bind)}
            live = live_tasks.between(self.conn, adopted, first=first, upto=upto)
            yield from TaskShare(replace(self.request, upto=upto), held, self.places.ready, live).free()
            first, size = upto, 2 * size

    def again(self) -> list[int]:
        """Cancelled tasks below the watermark whose leases the holder still has."""
        cancelled = [
            number for number in self.request.again if number < min(self.watermark.first, self.request.upto)
        ]
        if not cancelled:
            return []
        bind = {"kind": live_tasks.TRAIN, "token": self.request.holder.token, "ids": cancelled}
        return list(self.conn.execute(of_ids(queries.MAY_AGAIN), bind).scalars())

    def take(self, limit: int) -> list[int]:
        """Choose tasks as ``TaskShare.take`` does, with the number of stored tasks of the last full scan."""
        unfinished, have = max(0, self.request.upto - self.watermark.stored), len(self.request.have)
        wanted = min(limit, equal_part(unfinished, _ready(self.places.ready, self.request.holder), have))
        found = list(islice(self.free(), wanted + 1))
        if len(found) <= wanted:  # there are no more
            lease_watermark.move(self.conn, max(self.watermark.first, self.request.upto))
        elif found[-1] >= self.watermark.first:
            lease_watermark.move(self.conn, found[-1])
        return found[:wanted]


def watermark_view(conn: sa.Connection, request: TaskQuery, *, now: float) -> WatermarkView | None:
    """View from the stored watermark; None where none is kept for the query."""
    watermark = Watermark.read(conn)
    if not watermark.serves(request):
        return None
    return WatermarkView(conn, request, watermark, ExplorerReadiness.read(conn, now=now), now)


def free(conn: sa.Connection, request: TaskQuery, *, limit: int, now: float) -> list[int] | None:
    """The first tasks that the holder may take; None where a full scan is due (``free_after_scan``)."""
    view = watermark_view(conn, request, now=now)
    if view and not view.is_valid:
        return None
    return list(islice((view or scan(conn, request, now=now)).free(), limit))


def free_after_scan(conn: sa.Connection, request: TaskQuery, *, limit: int, now: float) -> list[int]:
    """List free tasks as ``free`` does, after a full scan if none is recent.

    The caller holds ``live_tasks.lock``.
    """
    if (found := free(conn, request, limit=limit, now=now)) is not None:
        return found
    share = scan(conn, request, now=now)
    _store_watermarks(conn, share, [], now=now)
    return list(islice(share.free(), limit))


def _store_watermarks(conn: sa.Connection, share: TaskShare, taken: Sequence[int], *, now: float) -> None:
    """Store the watermarks that a full scan found, once ``taken`` are leased."""
    if share.request.kind != live_tasks.TRAIN:
        return
    live_tasks.advance(conn, share.live)
    if not share.request.by_place:
        watermark = Watermark(share.live.below, share.next(taken), share.live.count, now, share.living)
        lease_watermark.write(conn, watermark)


def take(
    conn: sa.Connection, request: TaskQuery, *, limit: int, version: int, now: float, fully: bool = False
) -> list[int]:
    """Lease up to ``limit`` free tasks; none to a holder that has lost its place.

    The caller holds ``live_tasks.lock``. ``fully``: make a full scan whatever the watermark.
    """
    if conn.execute(query(queries.HAS_PLACE), {"token": request.holder.token}).first() is None:
        return []
    view = None if fully else watermark_view(conn, request, now=now)
    if view and view.is_valid:
        taken = view.take(limit)
    else:
        share = scan(conn, request, now=now)
        taken = share.take(limit)
        _store_watermarks(conn, share, taken, now=now)
    if taken:
        bind = {"kind": request.kind, "token": request.holder.token, "version": version}
        conn.execute(query(queries.LEASE), [{**bind, "task_no": number} for number in taken])
    point("inside lease")
    return taken


def end_leases(conn: sa.Connection, holder: LeaseHolder, groups: Sequence[Group]) -> None:
    """End the leases on the tasks of these groups, which are stored in the same transaction."""
    bind = [{"kind": group.kind, "task_no": group.task_no, "token": holder.token} for group in groups]
    conn.execute(query(queries.END_LEASE), bind)


def pending(conn: sa.Connection, holder: LeaseHolder, *, upto: int, now: float) -> PendingTasks:
    """Count the stored training tasks, and the leases of other holders by version."""
    bind = {"kind": live_tasks.TRAIN, "token": holder.token, "now": now}
    others = {row[0]: row[1] for row in conn.execute(query(queries.HELD_BY_OTHERS), bind)}
    return PendingTasks(live_tasks.count(conn, upto=upto), others)
