"""Training tasks without a group: those that this explorer may begin, and those that it has begun."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Collection, Iterable, Set

from trinity_compat.buffer import HistoryChanged
from trinity_compat.buffer.model import LeaseHolder, PendingTasks, TaskQuery
from trinity_compat.buffer.store import Buffer
from trinity_compat.job.liveness import TASK_LEASE_S

PLACES_S = 1.0  # between reads of which explorers are alive


class TrainingTasks:
    """The run's ``total`` tasks, for a single explorer: each without a group may begin.

    A task is in flight from ``begin`` until it is stored or requeued.
    """

    holder: LeaseHolder | None = None  # this explorer's name in the buffer; None where it is alone

    def __init__(self, buffer: Buffer, total: int) -> None:
        self._buffer, self.total = buffer, total
        self._in_flight: set[int] = set()

    def first_missing(self) -> int | None:
        """Return the earliest task without a group, of any explorer."""
        return next(iter(self._buffer.missing_tasks(upto=self.total, limit=1)), None)

    def free(self, limit: int) -> list[int]:
        """Return the earliest tasks that this explorer may begin, one where others may take them."""
        return self.take(self.total, limit, 0, 0)

    def take(self, upto: int, limit: int, version: int, history: int) -> list[int]:
        """Reserve up to ``limit`` tasks below ``upto``, to be made with ``version`` of the weights."""
        missing = self._buffer.missing_tasks(upto=min(upto, self.total), limit=limit + len(self._in_flight))
        return [number for number in missing if number not in self._in_flight]

    def begin(self, tasks: Iterable[int]) -> None:
        """Mark tasks in flight."""
        self._in_flight.update(tasks)

    def mark_stored(self, tasks: Iterable[int]) -> None:
        """Mark tasks stored in the buffer."""
        self._in_flight.difference_update(tasks)

    def requeue(self, tasks: Collection[int]) -> None:
        """Make cancelled tasks available again."""
        self._in_flight.difference_update(tasks)

    def reset(self) -> None:
        """Discard what is in flight."""
        self._in_flight.clear()

    def pending(self) -> PendingTasks | None:
        """Return what is stored, and what other explorers have in flight; None without others."""
        return None

    def serves_evaluations(self) -> bool:
        """Return whether this explorer serves evaluations: the first living one does."""
        return True


class LeasedTasks(TrainingTasks):
    """The tasks of one of several explorers, by leases in the buffer (see ``Buffer.keep``).

    ``by_place``, the number of explorers: each has a fixed part, so that a repeated run makes the same
    batches, and takes over another's part when that one is gone; 0: an explorer that has room takes the next
    tasks.
    """

    holder: LeaseHolder

    def __init__(self, buffer: Buffer, total: int, place: int, *, by_place: int) -> None:
        super().__init__(buffer, total)
        self._place, self._by_place = place, by_place
        self._checked, self._is_first = -math.inf, False
        self._requeued: set[int] = set()  # leased, cancelled before they were finished
        self._enter(ready=False)

    def _enter(self, *, ready: bool) -> None:
        """Register with a token that no lease has yet."""
        self.holder = LeaseHolder(self._place, uuid.uuid4().hex)
        self._buffer.enter(self.holder, ready=ready, lease_s=TASK_LEASE_S)

    def query(self, upto: int, in_flight: Set[int]) -> TaskQuery:
        """Query for the tasks below ``upto`` that this explorer may take."""
        return TaskQuery(self.holder, upto, by_place=self._by_place, have=in_flight, again=self._requeued)

    def free(self, limit: int) -> list[int]:
        """Return the first task that it may lease."""
        return self._buffer.free_tasks(self.query(self.total, self._in_flight), limit=min(limit, 1))

    def take(self, upto: int, limit: int, version: int, history: int) -> list[int]:
        """Lease up to ``limit`` tasks."""
        taken = self.lease(self.query(min(upto, self.total), self._in_flight), limit, version, history)
        self._requeued.difference_update(taken)
        return taken

    def requeue(self, tasks: Collection[int]) -> None:
        """Keep the leases of cancelled tasks, and offer them to this explorer again."""
        super().requeue(tasks)
        self._requeued.update(tasks)

    def reset(self) -> None:
        """Discard what is in flight, and register as ready, without leases."""
        super().reset()
        self._requeued.clear()
        self._enter(ready=True)

    def lease(self, query: TaskQuery, limit: int, version: int, history: int) -> list[int]:
        """Lease tasks of any kind; none of a history that has ended."""
        if limit < 1:
            return []
        try:
            return self._buffer.lease_tasks(query, limit=limit, version=version, history=history)
        except HistoryChanged:
            return []

    def pending(self) -> PendingTasks:
        """Return what is stored, and what the others have in flight."""
        return self._buffer.pending(self.holder, upto=self.total)

    def serves_evaluations(self) -> bool:
        """Return whether no living explorer has a lower place, as read within the last PLACES_S."""
        if (now := time.monotonic()) - self._checked > PLACES_S:
            self._checked = now
            self._is_first = min(self._buffer.places(), default=self._place) >= self._place
        return self._is_first
