"""Allocation of tasks to an explorer: all that lack a group where it is alone, else those it leases."""

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

PLACES_S = 1.0  # between reads of which explorers are alive


class TaskAllocation(Protocol):
    """An explorer's part in the stream of training tasks."""

    @property
    def holder(self) -> LeaseHolder | None:
        """Its name in the buffer; None where it is alone."""

    def begin(self) -> None:
        """Start to take tasks, having none."""

    def free(self, upto: int, limit: int, in_flight: Set[int]) -> list[int]:
        """Return the first tasks below ``upto`` that it may begin, one where others may take them."""

    def take(self, upto: int, limit: int, in_flight: Set[int], version: int, history: int) -> list[int]:
        """Reserve up to ``limit`` free tasks, to be made with ``version`` of the weights."""

    def requeue(self, tasks: Iterable[int]) -> None:
        """Make tasks that it reserved and cancelled available to it again."""

    def pending(self, upto: int) -> PendingTasks | None:
        """Return the progress of the others with the tasks below ``upto``; None without others."""

    def evaluates(self) -> bool:
        """Return whether it serves evaluations: the first living explorer does."""


class SoleExplorer:
    """Allocation of a single explorer: every task without a group."""

    holder = None

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer

    def begin(self) -> None:
        """No-op."""

    def free(self, upto: int, limit: int, in_flight: Set[int]) -> list[int]:
        """Return up to ``limit`` tasks without a group."""
        missing = self._buffer.missing_tasks(upto=upto, limit=limit + len(in_flight))
        return [number for number in missing if number not in in_flight]

    def take(self, upto: int, limit: int, in_flight: Set[int], version: int, history: int) -> list[int]:
        """Return the same as ``free``."""
        return self.free(upto, limit, in_flight)

    def requeue(self, tasks: Iterable[int]) -> None:
        """No-op: the tasks have no group."""

    def pending(self, upto: int) -> PendingTasks | None:
        """Return None: there are no other explorers."""
        return None

    def evaluates(self) -> bool:
        """Return True: the only explorer serves all evaluations."""
        return True


class LeasedAllocation:
    """Allocation of one of several explorers, by leases in the buffer (see ``keep_alive``).

    ``by_place``, the number of explorers: each has a fixed part, so that a repeated run makes the same
    batches, and takes over another's part when that one is gone; 0: an explorer that has room takes the next
    tasks.
    """

    def __init__(self, buffer: Buffer, place: int, *, by_place: int) -> None:
        self._buffer, self._place, self._by_place = buffer, place, by_place
        self._checked, self._is_first = -math.inf, False
        self._requeued: set[int] = set()  # leased, cancelled before they were finished
        self.holder = self._enter(ready=False)

    def _enter(self, *, ready: bool) -> LeaseHolder:
        """Register with a token that no lease has yet."""
        holder = LeaseHolder(self._place, uuid.uuid4().hex)
        self._buffer.enter(holder, ready=ready, lease_s=LEASE_S)
        return holder

    def begin(self) -> None:
        """Register as ready, without tasks."""
        self._requeued.clear()
        self.holder = self._enter(ready=True)

    def query(self, upto: int, in_flight: Set[int] = frozenset()) -> TaskQuery:
        """Query for the tasks below ``upto`` that this explorer may take."""
        return TaskQuery(self.holder, upto, by_place=self._by_place, have=in_flight, again=self._requeued)

    def free(self, upto: int, limit: int, in_flight: Set[int]) -> list[int]:
        """Return the first task that it may lease."""
        return self._buffer.free_tasks(self.query(upto, in_flight), limit=min(limit, 1))

    def take(self, upto: int, limit: int, in_flight: Set[int], version: int, history: int) -> list[int]:
        """Lease up to ``limit`` tasks."""
        taken = self.lease(self.query(upto, in_flight), limit, version, history)
        self._requeued.difference_update(taken)
        return taken

    def requeue(self, tasks: Iterable[int]) -> None:
        """Keep the leases of cancelled tasks, and offer them to this explorer again."""
        self._requeued.update(tasks)

    def lease(self, query: TaskQuery, limit: int, version: int, history: int) -> list[int]:
        """Lease tasks of any kind; none of a history that has ended."""
        if limit < 1:
            return []
        try:
            return self._buffer.lease_tasks(query, limit=limit, version=version, history=history)
        except HistoryChanged:
            return []

    def pending(self, upto: int) -> PendingTasks | None:
        """Return what is stored below ``upto``, and what the others have in flight."""
        return self._buffer.pending(self.holder, upto=upto)

    def evaluates(self) -> bool:
        """Return whether no living explorer has a lower place, as read within the last PLACES_S."""
        if (now := time.monotonic()) - self._checked > PLACES_S:
            self._checked = now
            self._is_first = min(self._buffer.places(), default=self._place) >= self._place
        return self._is_first
