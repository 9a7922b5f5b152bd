"""The weights that an explorer's engines hold, and their replacement."""

from __future__ import annotations

from typing import Protocol

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.common.errors import RunError
from trinity_compat.explorer.engine.colocate import SharedDevice
from trinity_compat.explorer.engine.weight_sync_check import WeightSyncCheck
from trinity_compat.synchronizer.await_version import is_available
from trinity_compat.synchronizer.transports.nccl_rendezvous import WeightOffer

INITIAL = WeightVersion(version=0, path="", digest="", nbytes=0, method="model path")


class WeightLoader(Protocol):
    """Engines that load weights."""

    async def load(self, version: WeightVersion) -> None:
        """Load a version."""


class ReceivesWeights(Protocol):
    """Receiver of weights from the trainer's memory; see rollout/nccl_receiver.py."""

    def look(self) -> WeightOffer | None:
        """Return the trainer's offer, if it is new."""

    async def take(self, offer: WeightOffer) -> WeightVersion | None:
        """Accept an offer; None when that failed and the engines hold no usable weights."""


class EngineWeights:
    """Loads weights into all engines. ``in_place``: their version; None while it is unknown."""

    def __init__(
        self,
        engines: WeightLoader,
        receiver: ReceivesWeights | None,
        device: SharedDevice | None,
        sync_check: WeightSyncCheck | None,
    ) -> None:
        """Take the arguments of the same names of ``Explorer``."""
        self._engines, self._receiver, self._device, self._sync_check = engines, receiver, device, sync_check
        self.in_place: WeightVersion | None = INITIAL

    async def load(self, version: WeightVersion) -> bool:
        """Load a version. False when the trainer, by now two versions ahead, has deleted it."""
        if self._device:
            await self._device.use()
        if version != self.in_place:
            self.in_place = None
            try:
                await self._engines.load(version)
            except RunError:
                if is_available(version):
                    raise
                return False
            self.in_place = version
            await self._check()
        return True

    async def follow(self, newest: WeightVersion | None) -> bool:
        """Load a version if it is newer than the present one; no-op where weights have no files."""
        before = self.in_place
        if self._receiver or not (newest and before and newest.version > before.version):
            return False
        if not await self.load(newest):
            self.in_place = before
        return True

    def offer(self) -> WeightOffer | None:
        """Return the trainer's offer."""
        return self._receiver.look() if self._receiver else None

    async def take(self, offer: WeightOffer) -> bool:
        """Accept an offer. False when that failed: the engines may then hold a mixture of versions."""
        assert self._receiver is not None
        self.in_place = None
        self.in_place = await self._receiver.take(offer)
        await self._check()
        return self.in_place is not None

    def invalidate(self, *, made: bool) -> None:
        """Mark the weights unknown where a resume may give their version number to others.

        ``made``: groups that they were making are discarded, too. A version with a file is compared with the
        file that it names in any case.
        """
        if made or (self._receiver and self.in_place is not INITIAL):
            self.in_place = None

    async def _check(self) -> None:
        if self._sync_check and self.in_place:
            await self._sync_check.check(self.in_place.version)
