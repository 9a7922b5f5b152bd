"""The explorer's use of a device that the trainer uses too: engines are awake in its own turns only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from trinity_compat.synchronizer.device_turns import DeviceTurn

_POLL_S = 0.05


class Sleepable(Protocol):
    """Engines that can free the device and come back with the weights that they had."""

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...


class SharedDevice:
    """``engines`` are awake when they have been started."""

    def __init__(self, turn: DeviceTurn, engines: Sleepable) -> None:
        self._turn, self._engines, self._awake = turn, engines, True

    async def wait(self, check: Callable[[], None]) -> None:
        """Until it is the explorer's turn. ``check`` raises when that will not come."""
        while not self._turn.mine():
            check()
            await asyncio.sleep(_POLL_S)

    def mine(self) -> bool:
        """Whether it is the explorer's turn."""
        return self._turn.mine()

    async def use(self) -> None:
        """Wake the engines. In a turn of one's own only."""
        if not self._awake:
            await self._engines.wake()
        self._awake = True

    async def leave(self) -> None:
        """Nothing to do now: the engines sleep, and the trainer has the device."""
        if self._turn.mine():
            if self._awake:
                await self._engines.sleep()
            self._awake = False
            self._turn.give()
