"""What an explorer has under way: units of work that make groups, each a task of one TaskGroup.

A unit is what is begun at once: all steps that the weights in place may make (``fixed``), a single task
(the other styles), a step's drawing (filter_groups), an evaluation. Units wait here in task order until the
engines have room, so that a style that takes the newest weights begins each group as late as it can.
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
    """``make`` gives its groups as they are scored, ``answers`` in all; ``request``: the evaluation that it
    answers; ``task``: the training task, where it is a single one, which may be ended by itself."""

    make: Callable[[], AsyncIterator[Group]]
    answers: int
    request: EvalRequest | None = None
    task: int | None = None


class WorkPool:
    """Entered as a context: what a unit raises ends the block, and nothing outlives it."""

    def __init__(self, room: Callable[[], int]) -> None:
        """``room``: answers that the engines could begin now."""
        self._room = room
        self._tasks = asyncio.TaskGroup()
        self._running: dict[asyncio.Task[None], WorkUnit] = {}
        self._waiting: deque[WorkUnit] = deque()
        self._finished: list[Group] = []
        self._starting = 0  # answers that the engines have not been given yet, in tasks that are about to run
        self._news = asyncio.Event()
        self._evaluations = 0
        self._single: dict[int, tuple[asyncio.Task[None], float]] = {}  # by training task; since when

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
        """Put them under way, in their order: as room allows, or ``at_once``."""
        if at_once:
            for unit in units:
                self._start(unit)
            return
        self._waiting.extend(units)
        self.refill()

    def refill(self) -> None:
        """Start what waits, as far as there is room."""
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
        async for group in unit.make():
            if asyncio.current_task() not in self._running:
                return  # dropped meanwhile
            self._single.pop(group.task_no, None)
            self._finished.append(group)
            self._news.set()

    def _end(self, task: asyncio.Task[None]) -> None:
        if unit := self._running.pop(task, None):
            self._evaluations -= unit.request is not None
        self._news.set()

    def longer_than(self, seconds: float) -> list[int]:
        """Single training tasks that have been under way for so long."""
        now = asyncio.get_running_loop().time()
        return [number for number, (_, since) in self._single.items() if now - since > seconds]

    def end(self, tasks: Iterable[int]) -> list[int]:
        """End these single tasks, as far as they are under way: their answers are aborted. Gives them."""
        ended = [number for number in tasks if number in self._single]
        for number in ended:
            task, _ = self._single.pop(number)
            self._running.pop(task, None)
            task.cancel()
        return ended

    def collect(self) -> list[Group]:
        """Groups that have been finished since the last call."""
        found, self._finished = self._finished, []
        return found

    def drop(self) -> None:
        """Forget all that is under way: what is finished later counts for nobody."""
        for task in self._running:
            task.cancel()
        self._starting = self._evaluations = 0
        self._running.clear()
        self._single.clear()
        self._waiting.clear()
        self._finished.clear()

    async def news(self, timeout_s: float) -> None:
        """Until a group is finished or a unit has ended, no longer than that."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()

    @property
    def room(self) -> int:
        """Answers that could be begun now."""
        return self._room() - self._starting

    @property
    def busy(self) -> bool:
        """Whether the engines have work of ours, or will have it, or some of theirs is not collected."""
        return bool(self._running or self._waiting or self._finished)

    @property
    def full(self) -> bool:
        """Whether something waits for room."""
        return bool(self._waiting)

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation is under way."""
        return self._evaluations > 0


def _first(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first thing that went wrong: the others are of what it cancelled, or come after it."""
    error = several.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
