"""Sharing one stream of tasks among several explorers, by leases.

An explorer holds a place as long as it renews it; it holds a task when its token stands beside it and holds a
place. So the end of one row frees all that a dead explorer had, and its successor, which takes the place with
another token, frees it at once. A lease keeps work from being done twice; that nothing is *stored* twice
rests on the groups' keys alone.

Taking looks at what it takes, not at all that is under way (``leased``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import filterfalse, islice

import sqlalchemy as sa

from trinity_compat.buffer import lease_watermark, live_tasks, queries, stream_position
from trinity_compat.buffer.lease_watermark import ExplorerReadiness, WatermarkNote
from trinity_compat.buffer.model import Group, LeaseHolder, PendingTasks, TaskQuery
from trinity_compat.buffer.queries import of_ids, query
from trinity_compat.common.crash_points import point

CHUNK = 256  # tasks that a taker looks at first, then twice as many, until it has found enough


def enter(conn: sa.Connection, holder: LeaseHolder, *, ready: bool, until: float) -> None:
    """Take the place, from whoever has it."""
    bind = {"place": holder.place, "token": holder.token, "ready": int(ready), "until": until}
    conn.execute(query(queries.ENTER_PLACE), bind)


def leave(conn: sa.Connection, holder: LeaseHolder) -> None:
    """Give it up, and every task with it."""
    conn.execute(query(queries.LEAVE_PLACE), {"token": holder.token})


def keep(conn: sa.Connection, holder: LeaseHolder, *, until: float) -> bool:
    """Have it for longer; False when another took it."""
    return conn.execute(query(queries.KEEP_PLACE), {"token": holder.token, "until": until}).rowcount == 1


def places(conn: sa.Connection, *, now: float) -> Mapping[int, bool]:
    """Places that somebody has, and whether he takes tasks already."""
    return ExplorerReadiness.read(conn, now=now).ready


@dataclass(frozen=True, slots=True)
class TaskShare:
    """What one look at the queue tells ``asked``'s holder.

    ``held``: tokens by task; ``living``: all tokens' fingerprint.
    """

    asked: TaskQuery
    held: Mapping[int, str]
    places: Mapping[int, bool]
    live: live_tasks.LiveTasks
    living: int = 0

    def free(self) -> Iterator[int]:
        """Tasks that the holder may take, in order: never what it has."""
        missing, held = self.live.missing(self.asked.upto), self.held
        token, have = self.asked.holder.token, self.asked.have
        if self.asked.by_place:
            near = self._own() if everyone(self.asked, self.places) else missing
            return (number for number in near if number not in have and self._may_have(number))
        forgotten = [number for number, holder in held.items() if holder == token and number not in have]
        kept = held.keys() - forgotten if forgotten else held
        others = filterfalse(kept.__contains__, missing)  # thousands are under way in a large job
        return filterfalse(have.__contains__, others)

    def _own(self) -> Iterator[int]:
        """What is missing of the holder's part, and what it has leased of another's: all that it may take
        while every place is held."""
        by, token, live = self.asked.by_place, self.asked.holder.token, self.live
        place = self.asked.holder.place
        part = range(live.below + (place - live.below) % by, self.asked.upto, by)
        foreign = (number for number, holder in self.held.items() if holder == token and number % by != place)
        taken_over = sorted(number for number in foreign if live.below <= number < self.asked.upto)
        return filterfalse(live.beyond.__contains__, merge(part, taken_over))

    def _may_have(self, number: int) -> bool:
        asked = self.asked
        if (token := self.held.get(number)) is not None:
            return token == asked.holder.token
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
        ready = _ready(self.places, holder)
        enough = (limit + mine) * ready - others - mine  # with so many free the limit alone counts
        free = list(islice(self.free(), max(limit, enough)))
        return free[: min(limit, equal_part(len(free) + others + mine, ready, mine))]

    def next(self, taken: Sequence[int]) -> int:
        """The first free one after these, which were the first."""
        return next(islice(self.free(), len(taken), None), self.asked.upto)


def equal_part(tasks_: int, ready: int, have: int) -> int:
    """How many more belong to one that has ``have`` of them, when all who are ready have equally many."""
    return max(0, -(-tasks_ // ready) - have)


def everyone(asked: TaskQuery, places: Mapping[int, bool]) -> bool:
    """Whether somebody has each place, so that nobody takes what is another's."""
    return places.keys() >= set(range(asked.by_place))


def _ready(places: Mapping[int, bool], holder: LeaseHolder) -> int:
    return len({place for place, ready in places.items() if ready} | {holder.place})


def look(conn: sa.Connection, asked: TaskQuery, *, now: float) -> TaskShare:
    """Leases before groups: one that ends between the two has its group there."""
    living = ExplorerReadiness.read(
        conn, now=now
    )  # first: whoever leaves after it is missed by the next taker
    held = _held(conn, asked, living, now=now)
    live = live_tasks.live(conn, asked.kind, first=asked.first, upto=asked.upto)
    return TaskShare(asked, held, living.ready, live, living.fingerprint)


def _held(conn: sa.Connection, asked: TaskQuery, living: ExplorerReadiness, *, now: float) -> dict[int, str]:
    """Tokens by task. While every place is held an explorer that has a part reads that part, and its own."""
    bind: dict[str, object] = {"kind": asked.kind, "now": now}
    sql = queries.HELD
    if asked.by_place and everyone(asked, living.ready):
        sql, own = queries.HELD_IN_PART, asked.holder
        bind |= {"by": asked.by_place, "place": own.place, "token": own.token}
    return {task: token for task, token, _ in conn.execute(query(sql), bind)}


@dataclass(frozen=True, slots=True)
class WatermarkView:
    """The tasks from the note on, as one who doesn't look at all that is under way sees them."""

    conn: sa.Connection
    asked: TaskQuery
    note: WatermarkNote
    places: ExplorerReadiness
    now: float

    @property
    def holds(self) -> bool:
        """Whether what is seen so is all there is."""
        lives = self.asked.holder.token in self.places.tokens
        return lives and self.note.holds(self.places, now=self.now)

    def free(self) -> Iterator[int]:
        """Tasks that the holder may take, in order; reads as many as are asked for."""
        yield from self.again()
        _, adopted = stream_position.adopted(self.conn)
        first, size = self.note.first, CHUNK
        while first < self.asked.upto:
            upto = min(first + size, self.asked.upto)
            yield from self._between(first, upto, frozenset(adopted)).free()
            first, size = upto, 2 * size

    def _between(self, first: int, upto: int, adopted: frozenset[int]) -> TaskShare:
        bind = {"kind": live_tasks.TRAIN, "first": first, "upto": upto, "now": self.now}
        held = {task: token for task, token, _ in self.conn.execute(query(queries.HELD_BETWEEN), bind)}
        live = live_tasks.between(self.conn, adopted, first=first, upto=upto)
        return TaskShare(replace(self.asked, upto=upto), held, self.places.ready, live)

    def again(self) -> list[int]:
        """Of what the holder has given up, below the note, what is still its own."""
        given_up = [number for number in self.asked.again if number < min(self.note.first, self.asked.upto)]
        if not given_up:
            return []
        bind = {"kind": live_tasks.TRAIN, "token": self.asked.holder.token, "ids": given_up}
        return list(self.conn.execute(of_ids(queries.MAY_AGAIN), bind).scalars())

    def take(self, limit: int) -> list[int]:
        """As ``Share.take``; how many are stored is as old as the note."""
        unfinished, have = max(0, self.asked.upto - self.note.stored), len(self.asked.have)
        wanted = min(limit, equal_part(unfinished, _ready(self.places.ready, self.asked.holder), have))
        found = list(islice(self.free(), wanted + 1))
        if len(found) <= wanted:  # there are no more
            lease_watermark.move(self.conn, max(self.note.first, self.asked.upto))
        elif found[-1] >= self.note.first:
            lease_watermark.move(self.conn, found[-1])
        return found[:wanted]


def near(conn: sa.Connection, asked: TaskQuery, *, now: float) -> WatermarkView | None:
    """Where there is a note for such a question."""
    note = WatermarkNote.read(conn)
    return (
        WatermarkView(conn, asked, note, ExplorerReadiness.read(conn, now=now), now)
        if note.serves(asked)
        else None
    )


def free(conn: sa.Connection, asked: TaskQuery, *, limit: int, now: float) -> list[int] | None:
    """The first ones that the holder may take. None where it is time for a full look (``refreshed``)."""
    seen = near(conn, asked, now=now)
    if seen and not seen.holds:
        return None
    return list(islice((seen or look(conn, asked, now=now)).free(), limit))


def refreshed(conn: sa.Connection, asked: TaskQuery, *, limit: int, now: float) -> list[int]:
    """As ``free``, after a full look unless another has just had one. The caller holds the tasks' lock."""
    if (found := free(conn, asked, limit=limit, now=now)) is not None:
        return found
    share = look(conn, asked, now=now)
    _note(conn, share, [], now=now)
    return list(islice(share.free(), limit))


def _note(conn: sa.Connection, share: TaskShare, taken: Sequence[int], *, now: float) -> None:
    """What was seen by a full look, ``taken`` after it."""
    if share.asked.kind != live_tasks.TRAIN:
        return
    live_tasks.advance(conn, share.live)
    if share.asked.by_place:
        return
    lease_watermark.write(
        conn, WatermarkNote(share.live.below, share.next(taken), share.live.count, now, share.living)
    )


def take(
    conn: sa.Connection, asked: TaskQuery, *, limit: int, version: int, now: float, fully: bool = False
) -> list[int]:
    """Lease up to ``limit`` free tasks; none to a holder whose place another has.

    The caller holds the tasks' lock: there is one taker at a time. ``fully``: whatever the note says, look at
    all that is under way.
    """
    if conn.execute(query(queries.HAS_PLACE), {"token": asked.holder.token}).first() is None:
        return []
    taken = _choose(conn, asked, limit=limit, now=now, fully=fully)
    if taken:
        bind = {"kind": asked.kind, "token": asked.holder.token, "version": version}
        conn.execute(query(queries.LEASE), [{**bind, "task_no": number} for number in taken])
    point("inside lease")
    return taken


def _choose(conn: sa.Connection, asked: TaskQuery, *, limit: int, now: float, fully: bool) -> list[int]:
    seen = None if fully else near(conn, asked, now=now)
    if seen and seen.holds:
        return seen.take(limit)
    share = look(conn, asked, now=now)
    taken = share.take(limit)
    _note(conn, share, taken, now=now)
    return taken


def served(conn: sa.Connection, holder: LeaseHolder, groups: Sequence[Group]) -> None:
    """Their groups are stored: these leases have."""
    bind = [{"kind": group.kind, "task_no": group.task_no, "token": holder.token} for group in groups]
    conn.execute(query(queries.END_LEASE), bind)


def pending(conn: sa.Connection, holder: LeaseHolder, *, upto: int, now: float) -> PendingTasks:
    """How far the training stream is, and what others are making of it."""
    bind = {"kind": live_tasks.TRAIN, "token": holder.token, "now": now}
    others = {row[0]: row[1] for row in conn.execute(query(queries.HELD_BY_OTHERS), bind)}
    return PendingTasks(live_tasks.count(conn, upto=upto), others)
