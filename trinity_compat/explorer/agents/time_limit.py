"""Time limit of an agent loop: for tools, environments and its code.

Time that it waits for the engine doesn't count, so a limit means the same whether the engine is busy or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
END_S = 10.0  # grace period of a cancelled loop, to release its resources
_current: ContextVar[AgentTime | None] = ContextVar("own_time", default=None)


class AgentTimeout(Exception):
    """An agent loop exceeded its time limit."""


class AgentTime:
    """Clock that stops while a request to the engine is open."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._spent, self._open_requests = 0.0, 0

    @property
    def spent(self) -> float:
        """Seconds without an open request."""
        return self._spent + (0.0 if self._open_requests else self._clock() - self._since)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Stop the clock during a request to the engine; several may be open at once."""
        self._spent = self.spent
        self._open_requests += 1
        try:
            yield
        finally:
            self._open_requests -= 1
            self._since = self._clock()


def waiting_for_engine() -> contextlib.AbstractContextManager[None]:
    """Stop the clock of the loop that waits for the engine."""
    clock = _current.get()
    return clock.waiting() if clock else contextlib.nullcontext()


async def limited(loop: Coroutine[Any, Any, T], limit_s: float | None, clock: AgentTime | None = None) -> T:
    """Run ``loop`` with a time limit; return its result.

    Raises AgentTimeout after ``limit_s`` on its clock, and what it raises; a loop that ignores its
    cancellation is abandoned. ``clock``: its clock, where others record its requests.
    """
    clock = clock or AgentTime()
    token = _current.set(clock)  # inherited by the task below and those that it starts
    running = asyncio.ensure_future(loop)
    _current.reset(token)
    try:
        while not running.done():
            remaining = None if limit_s is None else limit_s - clock.spent
            if remaining is not None and remaining <= 0:
                running.cancel()
                await asyncio.wait({running}, timeout=END_S)
                raise AgentTimeout(
                    f"the agent loop took longer than {limit_s:g} s, the engine's time left out"
                )
            await asyncio.wait({running}, timeout=remaining)
    except asyncio.CancelledError:
        running.cancel()
        raise
    return running.result()
