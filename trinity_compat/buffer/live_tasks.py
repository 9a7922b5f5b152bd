"""Tasks of a stream that have a live group, read inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import filterfalse

import sqlalchemy as sa

from trinity_compat.buffer import queries, stream_position
from trinity_compat.buffer.queries import query

TRAIN = "train"
DRAWN = "draw:"  # with the step: kind of the groups that several explorers draw for filter_groups


@dataclass(frozen=True, slots=True)
class LiveTasks:
    """Tasks with a live group: all below ``below``, and those in ``beyond``.

    ``known``: the watermark ``below`` as the database stores it, which may lag behind.
    """

    below: int
    beyond: frozenset[int]
    known: int

    def missing(self, upto: int) -> Iterator[int]:
        """Tasks below ``upto`` without a live group, in order."""
        return filterfalse(self.beyond.__contains__, range(self.below, upto))

    @property
    def count(self) -> int:
        """Number of tasks with a live group."""
        return self.below + len(self.beyond)


def live(conn: sa.Connection, kind: str, *, first: int, upto: int) -> LiveTasks:
    """Read the live tasks of the training stream, or of a drawing that begins at ``first``."""
    base, known = stream_position.AdoptedPosition(), first
    if kind == TRAIN:
        base = stream_position.adopted(conn)
        known = int(conn.execute(query(queries.COMPLETE_BELOW)).scalar_one())
        first = max(base.below, known)
    bind = {"kind": kind, "first": first, "upto": upto}
    found = {*base.beyond}.union(conn.execute(query(queries.LIVE_TASKS), bind).scalars())
    below = first
    while below in found:
        below += 1
    return LiveTasks(below, frozenset(number for number in found if number > below), known)


def between(conn: sa.Connection, adopted: frozenset[int], *, first: int, upto: int) -> LiveTasks:
    """Read the live tasks of a range of the training stream; ``below`` is its start ``first``."""
    bind = {"kind": TRAIN, "first": first, "upto": upto}
    return LiveTasks(first, adopted.union(conn.execute(query(queries.LIVE_TASKS), bind).scalars()), first)


def count(conn: sa.Connection, *, upto: int) -> int:
    """Return the number of training tasks below ``upto`` with a live group."""
    base = stream_position.adopted(conn)
    first = max(base.below, int(conn.execute(query(queries.COMPLETE_BELOW)).scalar_one()))
    if any(number >= first for number in base.beyond):
        return live(conn, TRAIN, first=0, upto=upto).count
    bind = {"kind": TRAIN, "first": first, "upto": upto}
    return first + int(conn.execute(query(queries.COUNT_LIVE), bind).scalar_one())


def lock(conn: sa.Connection, dialect: str) -> None:
    """Lock leasing and the watermark ``complete_below`` until the transaction ends.

    On SQLite this is a read: it has one writer anyway.
    """
    conn.execute(query(queries.COMPLETE_BELOW + queries.for_update(dialect)))


def advance(conn: sa.Connection, found: LiveTasks) -> None:
    """Store the watermark ``complete_below``.

    The caller has taken ``lock`` before it read ``found``; else the task of a group dropped in between would
    never be sampled again.
    """
    if found.below > found.known:
        conn.execute(query(queries.SET_COUNTER), {"name": "complete_below", "value": found.below})
