"""Which tasks of a stream have a live group, inside a transaction that the caller opened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import filterfalse

import sqlalchemy as sa

from trinity_compat.buffer import queries, stream_position
from trinity_compat.buffer.queries import query

TRAIN = "train"
DRAWN = "draw:"  # and the step: what filter_groups draws among several explorers


@dataclass(frozen=True, slots=True)
class LiveTasks:
    """Tasks with a live group: all below ``below``, and those in ``beyond``.

    ``known``: the database's own note of the first, which may lag behind.
    """

    below: int
    beyond: frozenset[int]
    known: int

    def missing(self, upto: int) -> Iterator[int]:
        """Those below ``upto`` that have none, in order."""
        return filterfalse(self.beyond.__contains__, range(self.below, upto))

    @property
    def count(self) -> int:
        """How many have one."""
        return self.below + len(self.beyond)


def live(conn: sa.Connection, kind: str, *, first: int, upto: int) -> LiveTasks:
    """Of the training stream, or of a drawing that begins at ``first``."""
    if kind == TRAIN:
        before, adopted = stream_position.adopted(conn)
        known = int(conn.execute(query(queries.COMPLETE_BELOW)).scalar_one())
        first = max(before, known)
    else:
        adopted, known = set(), first
    bind = {"kind": kind, "first": first, "upto": upto}
    found = adopted.union(conn.execute(query(queries.LIVE_TASKS), bind).scalars())
    below = first
    while below in found:
        below += 1
    return LiveTasks(below, frozenset(number for number in found if number > below), known)


def between(conn: sa.Connection, adopted: frozenset[int], *, first: int, upto: int) -> LiveTasks:
    """Of the training stream those of a range alone: ``below`` is where it begins."""
    bind = {"kind": TRAIN, "first": first, "upto": upto}
    return LiveTasks(first, adopted.union(conn.execute(query(queries.LIVE_TASKS), bind).scalars()), first)


def count(conn: sa.Connection, *, upto: int) -> int:
    """How many of the training stream have one."""
    before, adopted = stream_position.adopted(conn)
    first = max(before, int(conn.execute(query(queries.COMPLETE_BELOW)).scalar_one()))
    if any(number >= first for number in adopted):
        return live(conn, TRAIN, first=0, upto=upto).count
    bind = {"kind": TRAIN, "first": first, "upto": upto}
    return first + int(conn.execute(query(queries.COUNT_LIVE), bind).scalar_one())


def lock(conn: sa.Connection, dialect: str) -> None:
    """From here to the transaction's end nobody else takes tasks, nor moves the note of how far all are live.

    (SQLite has one writer anyway.)
    """
    conn.execute(query(queries.COMPLETE_BELOW + queries.for_update(dialect)))


def advance(conn: sa.Connection, found: LiveTasks) -> None:
    """Note how far the training stream is complete.

    Under ``lock`` only, taken before the look: else a group that was dropped meanwhile would be passed over
    for ever.
    """
    if found.below > found.known:
        conn.execute(query(queries.SET_COUNTER), {"name": "complete_below", "value": found.below})
