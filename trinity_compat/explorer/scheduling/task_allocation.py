"""Which tasks an explorer may make: all that lack a group where it is alone, else what it leases."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterable, Set
from typing import Protocol

from trinity_compat.buffer import HistoryChanged
from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.model import LeaseHolder, PendingTasks, TaskQuery
from trinity_compat.explorer.heartbeat import LEASE_S

PLACES_S = 1.0  # between looks at who lives


class TaskAllocation(Protocol):
    """An explorer's part in the stream of training tasks."""

    @property
    def holder(self) -> LeaseHolder | None:
        """Who it is in the buffer; None where it is alone."""

    def begin(self) -> None:
        """It takes tasks from now on, and has none."""

    def free(self, upto: int, limit: int, have: Set[int]) -> list[int]:
        """The first tasks below ``upto`` that it may begin (one, where others may take them); ``have`` are
        under way."""

    def take(self, upto: int, limit: int, have: Set[int], version: int, history: int) -> list[int]:
        """Have up to ``limit`` of them for itself; ``version`` of the weights will make them."""

    def ended(self, tasks: Iterable[int]) -> None:
        """It has ended some that it had, and will begin them again."""

    def pending(self, upto: int) -> PendingTasks | None:
        """How far the others are with the tasks below ``upto``; None where there are none."""

    def evaluates(self) -> bool:
        """Whether it serves evaluations: the first explorer that lives does."""


class SoleExplorer:
    """There is nobody else."""

    holder = None

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer

    def begin(self) -> None:
        """Nobody needs to know."""

    def free(self, upto: int, limit: int, have: Set[int]) -> list[int]:
        missing = self._buffer.missing_tasks(upto=upto, limit=limit + len(have))
        return [number for number in missing if number not in have]

    def take(self, upto: int, limit: int, have: Set[int], version: int, history: int) -> list[int]:
        return self.free(upto, limit, have)

    def ended(self, tasks: Iterable[int]) -> None:
        """They are missing."""

    def pending(self, upto: int) -> PendingTasks | None:
        return None

    def evaluates(self) -> bool:
        return True


class Queue:
    """One queue for all explorers, by leases in the buffer (see ``keep_alive``).

    ``by_place``, the number of explorers: each has a part of its own, so that the same run makes the same
    batches, and takes another's when that one is gone; 0: who has room takes the next tasks.
    """

    def __init__(self, buffer: Buffer, place: int, *, by_place: int) -> None:
        self._buffer, self._place, self._by_place = buffer, place, by_place
        self._looked, self._first = -math.inf, False
        self._again: set[int] = set()  # leased, ended unfinished
        self.holder = self._enter(ready=False)

    def _enter(self, *, ready: bool) -> LeaseHolder:
        """With a token that no task has."""
        holder = LeaseHolder(self._place, uuid.uuid4().hex)
        self._buffer.enter(holder, ready=ready, lease_s=LEASE_S)
        return holder

    def begin(self) -> None:
        self._again.clear()
        self.holder = self._enter(ready=True)

    def asked(self, upto: int, have: Set[int] = frozenset()) -> TaskQuery:
        return TaskQuery(self.holder, upto, by_place=self._by_place, have=have, again=self._again)

    def free(self, upto: int, limit: int, have: Set[int]) -> list[int]:
        return self._buffer.free_tasks(self.asked(upto, have), limit=min(limit, 1))

    def take(self, upto: int, limit: int, have: Set[int], version: int, history: int) -> list[int]:
        taken = self.lease(self.asked(upto, have), limit, version, history)
        self._again.difference_update(taken)
        return taken

    def ended(self, tasks: Iterable[int]) -> None:
        self._again.update(tasks)

    def lease(self, asked: TaskQuery, limit: int, version: int, history: int) -> list[int]:
        """Of any kind; none of an ended history."""
        if limit < 1:
            return []
        try:
            return self._buffer.lease_tasks(asked, limit=limit, version=version, history=history)
        except HistoryChanged:
            return []

    def pending(self, upto: int) -> PendingTasks | None:
        return self._buffer.pending(self.holder, upto=upto)

    def evaluates(self) -> bool:
        if (now := time.monotonic()) - self._looked > PLACES_S:
            self._looked, self._first = now, min(self._buffer.places(), default=self._place) >= self._place
        return self._first
