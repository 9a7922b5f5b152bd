"""Pool of an explorer's units of work in flight, each a task of one TaskGroup.

A unit begins as one: all steps that the loaded weights may make (``fixed``), a single task (the other
styles), a step's draw (filter_groups), an evaluation. Units wait here in task order until the engines have
room, so that a style that takes the newest weights begins each group as late as it can.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from trinity_compat.buffer.model import EvalRequest, Group


@dataclass(frozen=True, slots=True, eq=False)
class WorkUnit:
    """Work that begins as one.

    ``build`` yields its groups as they are scored, ``answers`` in all; ``request``: the evaluation that it
    answers; ``task``: its training task, if it is a single one, which may be cancelled by itself.
    """

    build: Callable[[], AsyncIterator[Group]]
    answers: int
    request: EvalRequest | None = None
    task: int | None = None


class WorkPool:
    """Runs units within a context: what a unit raises ends the block, and nothing outlives it."""

    def __init__(self, room: Callable[[], int]) -> None:
        """Run units as ``room``, the number of answers that the engines could begin now, allows."""
        self._room = room
        self._tasks = asyncio.TaskGroup()
        self._running: dict[asyncio.Task[None], WorkUnit] = {}
        self._waiting: deque[WorkUnit] = deque()
        self._finished: list[Group] = []
        self._starting = 0  # answers of tasks that are about to run, which the engines do not count yet
        self._progress = asyncio.Event()
        self._evaluations = 0
        self._single: dict[int, tuple[asyncio.Task[None], float]] = {}  # and its start, by training task

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as several:
            raise _first(several) from None

    def begin(self, units: Sequence[WorkUnit], *, at_once: bool = False) -> None:
        """Begin units in their order: as room allows, or ``at_once``."""
        if at_once:
            for unit in units:
                self._start(unit)
            return
        self._waiting.extend(units)
        self.refill()

    def refill(self) -> None:
        """Start waiting units while there is room."""
        while self._waiting and self.room > 0:
            self._start(self._waiting.popleft())

    def _start(self, unit: WorkUnit) -> None:
        self._starting += unit.answers
        task = self._tasks.create_task(self._run(unit))
        self._running[task] = unit
        self._evaluations += unit.request is not None
        task.add_done_callback(self._end)

    async def _run(self, unit: WorkUnit) -> None:
        self._starting -= unit.answers
        if unit.task is not None and (task := asyncio.current_task()):
            self._single[unit.task] = task, asyncio.get_running_loop().time()
        async for group in unit.build():
            if asyncio.current_task() not in self._running:
                return  # dropped in the meantime
            self._single.pop(group.task_no, None)
            self._finished.append(group)
            self._progress.set()

    def _end(self, task: asyncio.Task[None]) -> None:
        if unit := self._running.pop(task, None):
            self._evaluations -= unit.request is not None
        self._progress.set()

    def longer_than(self, seconds: float) -> list[int]:
        """Return single training tasks that have been in flight for more than ``seconds``."""
        now = asyncio.get_running_loop().time()
        return [number for number, (_, since) in self._single.items() if now - since > seconds]

    def add_pause(self, seconds: float) -> None:
        """Exempt so long a pause of the engines from the time that tasks are in flight."""
        self._single = {task: (run, since + seconds) for task, (run, since) in self._single.items()}

    def cancel(self, tasks: Iterable[int]) -> list[int]:
        """Cancel those of the single tasks that are in flight, and return them: their answers are aborted."""
        cancelled = [number for number in tasks if number in self._single]
        for number in cancelled:
            task, _ = self._single.pop(number)
            self._running.pop(task, None)
            task.cancel()
        return cancelled

    def collect(self) -> list[Group]:
        """Return the groups that were finished since the last call."""
        groups, self._finished = self._finished, []
        return groups

    def drop(self) -> None:
        """Discard all that is in flight: groups that finish later are ignored."""
        for task in self._running:
            task.cancel()
        self._starting = self._evaluations = 0
        self._running.clear()
        self._single.clear()
        self._waiting.clear()
        self._finished.clear()

    async def wait_for_progress(self, timeout_s: float) -> None:
        """Wait until a group is finished or a unit has ended, or the time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._progress.wait()
        except TimeoutError:
            pass
        self._progress.clear()

    @property
    def room(self) -> int:
        """Number of answers that could begin now."""
        return self._room() - self._starting

    @property
    def busy(self) -> bool:
        """Return whether a unit runs or waits, or a finished group is not collected."""
        return bool(self._running or self._waiting or self._finished)

    @property
    def full(self) -> bool:
        """Return whether a unit waits for room."""
        return bool(self._waiting)

    @property
    def evaluating(self) -> bool:
        """Return whether an evaluation is in flight."""
        return self._evaluations > 0


def _first(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error: the others are of what it cancelled, or came after it."""
    error = several.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
