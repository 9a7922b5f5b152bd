"""Training tasks without a group: those that this explorer may begin, and those that it has begun."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.model import PendingTasks, WeightVersion
from trinity_compat.explorer.scheduling.task_allocation import TaskAllocation


class TrainingTasks:
    """The run's ``total`` tasks, of which ``allocation`` says what this explorer may take.

    ``allocation``: see TaskAllocation. A task is in flight from ``begin`` until it is stored or requeued.
    """

    def __init__(self, buffer: Buffer, allocation: TaskAllocation, total: int) -> None:
        self._buffer, self.allocation, self.total = buffer, allocation, total
        self._in_flight: set[int] = set()

    def first_missing(self) -> int | None:
        """Return the earliest task without a group, of any explorer."""
        return next(iter(self._buffer.missing_tasks(upto=self.total, limit=1)), None)

    def free(self, limit: int) -> list[int]:
        """Return the earliest tasks that this explorer may begin."""
        return self.allocation.free(self.total, limit, self._in_flight)

    def take(self, upto: int, limit: int, version: WeightVersion, history: int) -> list[int]:
        """Reserve up to ``limit`` tasks below ``upto``, to be made with ``version``."""
        upto = min(upto, self.total)
        return self.allocation.take(upto, limit, self._in_flight, version.version, history)

    def begin(self, tasks: Iterable[int]) -> None:
        """Mark tasks in flight."""
        self._in_flight.update(tasks)

    def mark_stored(self, tasks: Iterable[int]) -> None:
        """Mark tasks stored in the buffer."""
        self._in_flight.difference_update(tasks)

    def requeue(self, tasks: Collection[int]) -> None:
        """Make cancelled tasks available again."""
        self._in_flight.difference_update(tasks)
        self.allocation.requeue(tasks)

    def reset(self) -> None:
        """Discard what is in flight."""
        self._in_flight.clear()
        self.allocation.begin()

    def pending(self) -> PendingTasks | None:
        """Return the other explorers' progress; None without others."""
        return self.allocation.pending(self.total)
