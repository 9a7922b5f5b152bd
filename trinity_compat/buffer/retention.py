"""Deletion of texts and tokens that are not needed any more, beside a live run.

Rewards, lengths, versions and the ledger stay. Invariants: a transaction takes as many groups as BATCH_S
allows, so that no writer waits long for the lock; a group that a claim may take is never emptied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from trinity_compat.buffer import queries
from trinity_compat.buffer.database import Database
from trinity_compat.buffer.queries import of_ids, query

BATCH_S = 0.02  # that a transaction should take at most
_LARGEST = 256  # groups of one transaction
_PAGES = 512  # of one step of SQLite's vacuum: 4 MB
ALL_TAKEN = 0  # uses after which a trained group is free: any number


# The groups of which something is dropped: all content, or teachers' arrays. Evaluations ask no teacher.
_CONTENT = (queries.DROPPABLE_USED, queries.DROPPABLE_EVALS, queries.DROPPABLE_DEAD)
_TEACHERS = (queries.TEACHERS_OF_USED, queries.TEACHERS_OF_DEAD)


@dataclass(frozen=True, slots=True)
class Droppable:
    """Limits of the content that may be deleted.

    These are groups whose last use was at trainer step ``upto`` or before, evaluations as old, groups that a
    pipeline dropped for such a step, void and stale groups. With replay only groups used ``max_uses`` times,
    or built with weights older than ``min_version``. With ``teachers_only`` only the arrays of teachers' top
    tokens go, and the rest of the answer stays.
    """

    upto: int
    max_uses: int = ALL_TAKEN
    min_version: int = 0
    teachers_only: bool = False


class TextRetention:
    """Deletes droppable groups in small transactions, and calls ``pause`` after each."""

    def __init__(self, db: Database, *, pause: Callable[[float], object] = time.sleep) -> None:
        self._db, self._pause = db, pause
        self._count = 8
        # By ``teachers_only``: steps up to here hold nothing more to drop; an early evaluation has step 0.
        self._done = {False: -1, True: -1}

    def drop(self, what: Droppable, *, until: Callable[[], bool] = lambda: False) -> int:
        """Delete droppable groups until none is left or ``until()`` is true; return how many experiences.

        ``until`` is called between transactions. Groups that become droppable later are left to the next
        call.
        """
        done = self._done[what.teachers_only]
        bind = {"above": done, "upto": what.upto, "uses": what.max_uses, "min": what.min_version}
        dropped = sum(
            emptied
            for statement in (_TEACHERS if what.teachers_only else _CONTENT)
            for emptied in self._batches(statement, bind, until, teachers_only=what.teachers_only)
        )
        if what.max_uses == ALL_TAKEN and not until():
            self._done[what.teachers_only] = max(done, what.upto)
        return dropped

    def _batches(
        self, statement: str, bind: dict[str, int], until: Callable[[], bool], *, teachers_only: bool
    ) -> Iterator[int]:
        while not until():
            found, emptied, took = self._db.run(
                lambda conn: self._batch(conn, statement, bind, teachers_only=teachers_only)
            )
            if not found:
                return
            yield emptied
            self._count = max(1, min(_LARGEST, round(self._count * min(2.0, BATCH_S / max(took, 1e-6)))))
            self._pause(took)  # half of the time belongs to the writers

    def _batch(
        self, conn: sa.Connection, statement: str, bind: dict[str, int], *, teachers_only: bool
    ) -> tuple[int, int, float]:
        """Empty a batch; returns groups, experiences, and seconds since the lock was acquired.

        The wait for the lock does not count, as it says nothing about the right size of a transaction.
        """
        began = time.monotonic()
        if conn.execute(query(queries.HOLDS_MEDIA)).scalar_one():
            # Writers hold it shared: none of them counts on an image that goes now.
            conn.execute(query(queries.HISTORY + queries.for_update(self._db.dialect)))
        lock = " FOR UPDATE OF g SKIP LOCKED" if self._db.dialect == "postgresql" else ""
        ids = conn.execute(query(statement + lock), {**bind, "count": self._count}).scalars().all()
        emptied = 0
        if ids and teachers_only:
            conn.execute(of_ids(queries.NOTE_TEACHERS_DROPPED), {"ids": ids, "now": self._db.now(conn)})
            emptied = conn.execute(of_ids(queries.DROP_TEACHERS), {"ids": ids}).rowcount
        elif ids:
            emptied = self._empty(conn, ids)
        return len(ids), emptied, time.monotonic() - began

    def _empty(self, conn: sa.Connection, ids: Sequence[int]) -> int:
        conn.execute(of_ids(queries.NOTE_DROPPED), {"ids": ids, "now": self._db.now(conn)})
        if digests := conn.execute(of_ids(queries.HELD_BY), {"ids": ids}).scalars().all():
            conn.execute(of_ids(queries.DROP_HELD), {"ids": ids})
            conn.execute(of_ids(queries.DROP_MEDIA), {"ids": digests})
        if self._db.dialect != "sqlite":
            return conn.execute(of_ids(queries.DROP_CONTENT), {"ids": ids}).rowcount
        conn.execute(query(queries.PLACE_OF_KEPT))
        emptied = conn.execute(of_ids(queries.TAKE_OUT), {"ids": ids}).rowcount
        for statement in (queries.DROP_TAKEN, queries.PUT_BACK, queries.EMPTY_KEPT):
            conn.execute(query(statement))
        return emptied

    def give_back(self, *, spare: float = 0.0, until: Callable[[], bool] = lambda: False) -> int:
        """Let SQLite's file shrink in small steps, but keep a part ``spare`` of it as free pages.

        Returns bytes; 0 where the database cannot shrink (one of an older release; PostgreSQL has
        autovacuum).
        """
        if self._db.dialect != "sqlite" or self._pragma("auto_vacuum") != _INCREMENTAL:
            return 0
        freed, size = 0, self._pragma("page_size")
        while (free := self._pragma("freelist_count")) > spare * self._pragma("page_count"):
            if until():
                break
            began = time.monotonic()
            self._db.run(_vacuum)
            if not (gained := free - self._pragma("freelist_count")) > 0:
                break
            freed += gained * size
            self._pause(time.monotonic() - began)
        return freed

    def _pragma(self, name: str) -> int:
        return int(
            self._db.run(lambda conn: conn.exec_driver_sql(f"PRAGMA {name}").scalar_one(), write=False)
        )


def last_trained(conn: sa.Connection) -> int:
    """The newest trainer step of the ledger, 0 for none."""
    return int(conn.execute(query(queries.LAST_TRAINED)).scalar_one() or 0)


_INCREMENTAL = 2


def _vacuum(conn: sa.Connection) -> None:
    # Of the driver itself: each fetched row of the statement is a page, and SQLAlchemy sees no rows in it.
    raw: Any = conn.connection.driver_connection
    raw.execute(f"PRAGMA incremental_vacuum({_PAGES})").fetchall()
