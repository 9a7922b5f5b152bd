"""The time that an agent loop takes itself: tools, environments, its own code.

What it waits for the engine doesn't count, so that a limit means the same whether the engine is busy or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
END_S = 10.0  # a loop that was cancelled has so long to give back what it holds
_current: ContextVar[AgentTime | None] = ContextVar("own_time", default=None)


class AgentTimeout(Exception):
    """An agent loop took longer than it may."""


class AgentTime:
    """Seconds that have passed while nothing was asked of the engine."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._spent, self._asked = 0.0, 0

    @property
    def spent(self) -> float:
        return self._spent + (0.0 if self._asked else self._clock() - self._since)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around each question to the engine; several may be open at once."""
        self._spent = self.spent
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1
            self._since = self._clock()


def waiting_for_engine() -> contextlib.AbstractContextManager[None]:
    """Stops the time of the loop that asks."""
    own = _current.get()
    return own.waiting() if own else contextlib.nullcontext()


async def limited(loop: Coroutine[Any, Any, T], limit_s: float | None, own: AgentTime | None = None) -> T:
    """What ``loop`` returns.

    Raises OwnTimeUp once it has taken ``limit_s`` itself, and what it raises; a loop that ignores its
    cancelling is left behind. ``own``: where others note what it asks.
    """
    own = own or AgentTime()
    token = _current.set(own)  # the task below and its own take it with them
    running = asyncio.ensure_future(loop)
    _current.reset(token)
    try:
        while not running.done():
            left = None if limit_s is None else limit_s - own.spent
            if left is not None and left <= 0:
                running.cancel()
                await asyncio.wait({running}, timeout=END_S)
                raise AgentTimeout(
                    f"the agent loop took longer than {limit_s:g} s, the engine's time left out"
                )
            await asyncio.wait({running}, timeout=left)
    except asyncio.CancelledError:
        running.cancel()
        raise
    return running.result()
