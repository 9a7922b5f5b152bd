"""How far the training stream is leased: what spares a taker the look at all that is under way.

Below ``leased_below`` every task has a live group, or is leased by somebody who lived at the last full look,
or was taken since: so the next free ones are looked for from there on. What would make that untrue lowers the
number in the same transaction (groups that are dropped, a resume), or is seen by the next taker in what it
reads anyway (somebody died, left or came); and once a second one taker looks at all, whatever has happened.
A number that is too low costs time, never a task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import sqlalchemy as sa

from trinity_compat.buffer import live_tasks, queries
from trinity_compat.buffer.model import TaskQuery
from trinity_compat.buffer.queries import query

LOOK_S = 1.0  # between looks at all that is under way
FEW = 512  # tasks under way that are looked at each time: then who gets how many is exact
_BELOW, _LOOKED, _LIVING, _STORED = "leased_below", "leases_looked_ms", "leases_living", "leases_stored"


@dataclass(frozen=True, slots=True)
class ExplorerReadiness:
    """Who lives: whether each is ready, by place; and their tokens."""

    ready: Mapping[int, bool]
    tokens: frozenset[str]

    @classmethod
    def read(cls, conn: sa.Connection, *, now: float) -> Self:
        """At ``now``, seconds of the database's clock."""
        rows = conn.execute(query(queries.PLACES), {"now": now}).all()
        return cls({row[0]: bool(row[2]) for row in rows}, frozenset(row[1] for row in rows))

    @property
    def fingerprint(self) -> int:
        """The same for the same tokens."""
        digest = hashlib.blake2b("\n".join(sorted(self.tokens)).encode(), digest_size=7)
        return int.from_bytes(digest.digest())


@dataclass(frozen=True, slots=True)
class WatermarkNote:
    """What the last full look found, and what was taken since.

    ``complete``: below it all tasks are live; ``stored``: how many were; ``looked_at``: seconds of the
    database's clock; ``living``: a fingerprint.
    """

    complete: int
    below: int
    stored: int
    looked_at: float
    living: int

    @classmethod
    def read(cls, conn: sa.Connection) -> Self:
        """Zeros where nothing was noted."""
        found: dict[str, int] = {row[0]: row[1] for row in conn.execute(query(queries.COUNTERS))}
        below, looked, living, stored = (found.get(name, 0) for name in (_BELOW, _LOOKED, _LIVING, _STORED))
        return cls(found["complete_below"], below, stored, looked / 1000, living)

    @property
    def first(self) -> int:
        """From where to look for free tasks."""
        return max(self.complete, self.below)

    def serves(self, asked: TaskQuery) -> bool:
        """Whether it is made for such a question, and so much is under way that it is worth anything."""
        return asked.kind == live_tasks.TRAIN and not asked.by_place and self.below - self.complete > FEW

    def holds(self, places: ExplorerReadiness, *, now: float) -> bool:
        """Whether it is new enough, and nobody has died or come since."""
        return 0 <= now - self.looked_at < LOOK_S and self.living == places.fingerprint


def write(conn: sa.Connection, note: WatermarkNote) -> None:
    """After a full look.

    Under ``tasks.lock`` only, as ``move``. Where little is under way there is no note: each look is a full
    one.
    """
    if note.below - note.complete > FEW:
        looked = {_LOOKED: int(note.looked_at * 1000), _LIVING: note.living, _STORED: note.stored}
        rows = [{"name": name, "value": value} for name, value in {_BELOW: note.below, **looked}.items()]
        conn.execute(query(queries.NOTE_COUNTER), rows)


def move(conn: sa.Connection, below: int) -> None:
    """What lies below it was taken."""
    conn.execute(query(queries.SET_COUNTER), {"name": _BELOW, "value": below})


def lower(conn: sa.Connection, first: int) -> None:
    """From ``first`` on tasks may have lost their groups.

    Each row is locked, also where nothing changes: a taker that raises the number now, having seen those
    groups, is waited for.
    """
    for name in ("complete_below", _BELOW):  # a taker locks them in this order
        conn.execute(query(queries.LOWER_COUNTER), {"name": name, "value": first})


def forget(conn: sa.Connection) -> None:
    """All leases have ended."""
    conn.execute(query(queries.SET_COUNTER), {"name": _BELOW, "value": 0})
