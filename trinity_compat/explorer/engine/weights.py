"""The weights that an explorer's engines hold, and how others get there."""

from __future__ import annotations

from typing import Protocol

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.common.errors import RunError
from trinity_compat.explorer.engine.colocate import SharedDevice
from trinity_compat.explorer.engine.weight_sync_check import HandoverTest
from trinity_compat.synchronizer.await_version import is_there
from trinity_compat.synchronizer.transports.nccl_rendezvous import WeightOffer

INITIAL = WeightVersion(version=0, path="", digest="", nbytes=0, method="model path")


class WeightLoader(Protocol):
    """Engines."""

    async def load(self, version: WeightVersion) -> None:
        """Put a version in place."""


class Receives(Protocol):
    """What takes weights over from the trainer; see ``receiving``."""

    def look(self) -> WeightOffer | None:
        """What the trainer offers."""

    async def take(self, offer: WeightOffer) -> WeightVersion | None:
        """Take it; None when that failed and the engines hold nothing of use."""


class EngineWeights:
    """``in_place``: the version that all engines hold; None while they may hold anything."""

    def __init__(
        self,
        engines: WeightLoader,
        receiver: Receives | None,
        device: SharedDevice | None,
        test: HandoverTest | None,
    ) -> None:
        """As ``Explorer``'s."""
        self._engines, self._receiver, self._device, self._test = engines, receiver, device, test
        self.in_place: WeightVersion | None = INITIAL

    async def load(self, version: WeightVersion) -> bool:
        """Put it in place. False when the trainer, two versions ahead by now, has deleted it meanwhile."""
        if self._device:
            await self._device.use()
        if version != self.in_place:
            self.in_place = None
            try:
                await self._engines.load(version)
            except RunError:
                if is_there(version):
                    raise
                return False
            self.in_place = version
            await self._tested()
        return True

    async def follow(self, newest: WeightVersion | None) -> bool:
        """Put it in place if it is newer than what is. Where weights are taken over, that is all there is."""
        before = self.in_place
        if self._receiver or not (newest and before and newest.version > before.version):
            return False
        if not await self.load(newest):
            self.in_place = before
        return True

    def offer(self) -> WeightOffer | None:
        """What the trainer offers to hand over."""
        return self._receiver.look() if self._receiver else None

    async def take(self, offer: WeightOffer) -> bool:
        """Take it over. False when that came to nothing: the engines may hold a mixture then."""
        assert self._receiver is not None
        self.in_place = None
        self.in_place = await self._receiver.take(offer)
        await self._tested()
        return self.in_place is not None

    def invalidate(self, *, made: bool) -> None:
        """A resume has ended the history that they are of, under whose numbers others may come; ``made``: or
        what they were making is dropped. What has a file is compared with what it names, in any case."""
        if made or (self._receiver and self.in_place is not INITIAL):
            self.in_place = None

    async def _tested(self) -> None:
        if self._test and self.in_place:
            await self._test.check(self.in_place.version)
