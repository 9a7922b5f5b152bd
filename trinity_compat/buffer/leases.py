"""Sharing one stream of tasks among several explorers, by leases.

An explorer holds a place as long as it renews it; it holds a task when its token stands beside it and holds a
place. So the end of one row frees all that a dead explorer had, and its successor, which takes the place with
another token, frees it at once. A lease keeps work from being done twice; that nothing is *stored* twice
rests on the groups' keys alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse, islice

import sqlalchemy as sa

from trinity_compat.buffer import queries, tasks
from trinity_compat.buffer.model import Group, Holder, Pending, TaskQuery
from trinity_compat.buffer.queries import query
from trinity_compat.faults import point


def enter(conn: sa.Connection, holder: Holder, *, ready: bool, until: float) -> None:
    """Take the place, from whoever has it."""
    bind = {"place": holder.place, "token": holder.token, "ready": int(ready), "until": until}
    conn.execute(query(queries.ENTER_PLACE), bind)


def leave(conn: sa.Connection, holder: Holder) -> None:
    """Give it up, and every task with it."""
    conn.execute(query(queries.LEAVE_PLACE), {"token": holder.token})


def keep(conn: sa.Connection, holder: Holder, *, until: float) -> bool:
    """Have it for longer; False when another took it."""
    return conn.execute(query(queries.KEEP_PLACE), {"token": holder.token, "until": until}).rowcount == 1


def places(conn: sa.Connection, *, now: float) -> dict[int, bool]:
    """Places that somebody has, and whether he takes tasks already."""
    return {place: bool(ready) for place, ready in conn.execute(query(queries.PLACES), {"now": now})}


@dataclass(frozen=True, slots=True)
class Share:
    """What one look at the queue tells ``asked``'s holder. ``held``: tokens by task."""

    asked: TaskQuery
    held: Mapping[int, str]
    places: Mapping[int, bool]
    live: tasks.Live

    def free(self) -> Iterator[int]:
        """Tasks that the holder may take, in order."""
        missing, held = self.live.missing(self.asked.upto), self.held
        if self.asked.by_place:
            return (number for number in missing if self._may_have(number))
        token, have = self.asked.holder.token, self.asked.have
        forgotten = [number for number, holder in held.items() if holder == token and number not in have]
        kept = held.keys() - forgotten if forgotten else held
        return filterfalse(kept.__contains__, missing)  # thousands of tasks are under way in a large job

    def _may_have(self, number: int) -> bool:
        asked = self.asked
        if (token := self.held.get(number)) is not None:
            return token == asked.holder.token and number not in asked.have
        place = number % asked.by_place
        return place == asked.holder.place or place not in self.places

    def take(self, limit: int) -> list[int]:
        """The first free ones, ``limit`` at most; where fewer are free than all who are ready could take, so
        many that they have equally many."""
        if self.asked.by_place:
            return list(islice(self.free(), limit))
        holder, have = self.asked.holder, self.asked.have
        mine = sum(number in have for number, token in self.held.items() if token == holder.token)
        others = sum(token != holder.token for token in self.held.values())
        ready = len({place for place, is_ready in self.places.items() if is_ready} | {holder.place})
        enough = (limit + mine) * ready - others - mine  # with so many free the limit alone counts
        free = list(islice(self.free(), max(limit, enough)))
        fair = max(0, -(-(len(free) + others + mine) // ready) - mine)
        return free[: min(limit, fair)]


def look(conn: sa.Connection, asked: TaskQuery, *, now: float) -> Share:
    """Leases before groups: one that ends between the two has its group there."""
    held = {
        task: token for task, token, _ in conn.execute(query(queries.HELD), {"kind": asked.kind, "now": now})
    }
    live = tasks.live(conn, asked.kind, first=asked.first, upto=asked.upto)
    return Share(asked, held, places(conn, now=now), live)


def take(conn: sa.Connection, asked: TaskQuery, *, limit: int, version: int, now: float) -> list[int]:
    """Lease up to ``limit`` free tasks; none to a holder whose place another has. The caller holds the tasks'
    lock: there is one taker at a time."""
    share = look(conn, asked, now=now)
    if asked.kind == tasks.TRAIN:
        tasks.advance(conn, share.live)
    if conn.execute(query(queries.HAS_PLACE), {"token": asked.holder.token}).first() is None:
        return []
    taken = share.take(limit)
    if taken:
        bind = {"kind": asked.kind, "token": asked.holder.token, "version": version}
        conn.execute(query(queries.LEASE), [{**bind, "task_no": number} for number in taken])
    point("inside lease")
    return taken


def served(conn: sa.Connection, holder: Holder, groups: Sequence[Group]) -> None:
    """Their groups are stored: these leases have."""
    bind = [{"kind": group.kind, "task_no": group.task_no, "token": holder.token} for group in groups]
    conn.execute(query(queries.END_LEASE), bind)


def pending(conn: sa.Connection, holder: Holder, *, upto: int, now: float) -> Pending:
    """How far the training stream is, and what others are making of it."""
    rows = conn.execute(query(queries.HELD), {"kind": tasks.TRAIN, "now": now})
    others = Counter(version for _, token, version in rows if token != holder.token)
    return Pending(tasks.live(conn, tasks.TRAIN, first=0, upto=upto).count, others)
