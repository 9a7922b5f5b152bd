"""Pool of killable processes, for scorers, agent loops and workflows.

Invariant: a process that ends fails one call at most. Of several in it, nobody knows which one ended it: each
is run again alone, and the one that ends its process again has failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from trinity_compat.explorer.sandbox.output import RateLimitedOutput
from trinity_compat.explorer.sandbox.process import Process, ProcessDied, StartFailed
from trinity_compat.job.fingerprint import FilesEdited

P = TypeVar("P", bound=Process)
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Place(Generic[P]):
    """A process, running or starting; ``calls``: their number; ``alone``: reserved for one."""

    start: asyncio.Task[P]
    calls: int = 0
    alone: bool = False

    @property
    def process(self) -> P | None:
        started = self.start.done() and not self.start.cancelled() and not self.start.exception()
        return self.start.result() if started else None

    @property
    def alive(self) -> bool:
        return not self.process.dead if self.process else not self.start.done()

    @property
    def shared(self) -> bool:
        """True for a process that takes calls beside others."""
        return self.alive and not self.alone and not (self.process and self.process.spoilt)

    def end(self) -> None:
        if self.process:
            self.process.kill()
        self.start.cancel()


class ProcessPool(Generic[P]):
    """At most ``size`` processes, started as they are needed, and as many again for calls that run alone."""

    def __init__(
        self,
        make: Callable[[RateLimitedOutput], P],
        size: int,
        printed: RateLimitedOutput,
        loaded: Callable[[], None] = lambda: None,
        *,
        tries: int = 1,
    ) -> None:
        """Set up a pool.

        ``loaded``: called when a process has loaded its files; raises FilesEdited where they were edited.
        ``tries``: starts of one process, unless it reports why it cannot work.
        """
        self._make, self._size, self._printed = make, size, printed
        self._loaded, self._tries = loaded, tries
        self._places: list[_Place[P]] = []
        self._alone = asyncio.Semaphore(size)
        self._closed = False

    async def run(self, call: Callable[[P], Awaitable[T]], *, alone: bool = False) -> T:
        """Return the result of a call, in the process with the fewest; ``alone``: in an otherwise idle one.

        Raises ProcessDied where the call ended its process; StartFailed, FilesEdited; what the call raises.
        """
        if not alone:
            try:
                return await self._run(call, alone=False)
            except ProcessDied as error:
                if error.certain:
                    raise
        async with self._alone:
            return await self._run(call, alone=True)

    async def _run(self, call: Callable[[P], Awaitable[T]], *, alone: bool) -> T:
        self._places = [each for each in self._places if each.alive]
        shared = [each for each in self._places if each.shared]
        place = min(shared, key=lambda each: each.calls, default=None)
        if place is None or (place.calls and (alone or len(shared) < self._size)):
            if self._closed:
                raise StartFailed("was not started: its pool is closed")
            place = _Place(asyncio.ensure_future(self._start()))
            self._places.append(place)
        place.calls, place.alone = place.calls + 1, alone
        try:
            return await call(await asyncio.shield(place.start))
        finally:
            self._leave(place)

    def _leave(self, place: _Place[P]) -> None:
        place.calls, place.alone = place.calls - 1, False
        one_too_many = sum(each.shared for each in self._places) > self._size
        if not place.calls and (one_too_many or not place.shared):
            place.end()

    async def _start(self) -> P:
        failed = StartFailed("")
        for _ in range(self._tries):
            process = self._make(self._printed)
            try:
                await process.start()
                self._loaded()
                if not process.dead:
                    return process
                failed = StartFailed("ended as soon as it was ready")
            except FilesEdited:
                process.kill()
                raise
            except StartFailed as error:
                failed = error
                if error.broken:
                    break
            except Exception as error:
                process.kill()
                failed = StartFailed(f"could not be started ({type(error).__name__}: {error})")
        raise failed

    def close(self) -> None:
        """Kill all processes."""
        self._closed = True
        for place in self._places:
            place.end()
        self._printed.report_dropped()
