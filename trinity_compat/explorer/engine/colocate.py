"""The explorer's use of a device that it shares with the trainer: its engines are awake in its turns only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from trinity_compat.synchronizer.device_turns import DeviceTurn

_POLL_S = 0.05


class Sleepable(Protocol):
    """Engines that can free the device and return with the same weights."""

    async def sleep(self) -> None:
        """Free the device."""

    async def wake(self) -> None:
        """Return to the device."""


class SharedDevice:
    """A device used in turns; ``engines`` are awake once they are started."""

    def __init__(self, turn: DeviceTurn, engines: Sleepable) -> None:
        self._turn, self._engines, self._awake = turn, engines, True

    async def wait(self, check: Callable[[], None]) -> None:
        """Wait for the explorer's turn. ``check`` raises when it will not come."""
        while not self._turn.mine():
            check()
            await asyncio.sleep(_POLL_S)

    def mine(self) -> bool:
        """Return whether it is the explorer's turn."""
        return self._turn.mine()

    async def use(self) -> None:
        """Wake the engines. Call in the explorer's turn only."""
        if not self._awake:
            await self._engines.wake()
        self._awake = True

    async def leave(self) -> None:
        """Put the engines to sleep and give the turn to the trainer."""
        if self._turn.mine():
            if self._awake:
                await self._engines.sleep()
            self._awake = False
            self._turn.give()
