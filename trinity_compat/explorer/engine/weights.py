"""The weights that an explorer's engines hold: their replacement, its check, and a device in turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.buffer.store import Buffer
from trinity_compat.common.errors import RunError
from trinity_compat.synchronizer.device_turns import DeviceTurn
from trinity_compat.synchronizer.engine_dtypes import REPORTED, Dtypes
from trinity_compat.synchronizer.transports.nccl_rendezvous import WeightOffer
from trinity_compat.synchronizer.versions import is_available
from trinity_compat.synchronizer.weight_sync_check import SCORED_ANSWER

_log = logging.getLogger(__name__)


class ScoringEngine(Protocol):
    """Engines that score a text."""

    async def score(self, token_ids: Sequence[int]) -> list[list[float]]:
        """Return, for each engine, the log-probability of every token after the first, at temperature 1."""


class WeightSyncCheck:
    """Compares the engines' log-probabilities with the trainer's, once.

    ``bound``: of the mean difference, in nats a token; 0 disables the check.
    """

    def __init__(self, buffer: Buffer, engines: ScoringEngine, bound: float) -> None:
        self._buffer, self._engines, self._bound = buffer, engines, bound

    async def check(self, version: int) -> None:
        """Check a version that was loaded. Raises RunError when an engine holds other weights."""
        sample = SCORED_ANSWER.get(self._buffer) if self._bound and version else None
        if sample is None or sample.version != version:
            return
        bound, self._bound = self._bound, 0.0
        scored = await self._engines.score([*sample.prompt_ids, *sample.response_ids])
        for logprobs in scored:
            result = sample.check(logprobs[-len(sample.logprobs) :], bound)
            _log.info("weight-sync check: %s", result)


_POLL_S = 0.05


class Sleepable(Protocol):
    """Engines that can free the device, and return without weights."""

    async def sleep(self) -> None:
        """Free the device."""

    async def wake(self) -> None:
        """Return to the device, with room for weights."""

    async def resume(self) -> None:
        """Take the rest of the memory, after weights were received."""


class SharedDevice:
    """A device used in turns; ``engines`` are awake once they are started."""

    def __init__(self, turn: DeviceTurn, engines: Sleepable) -> None:
        self._turn, self._engines, self._awake = turn, engines, True
        self._receives = False  # awake for weights alone, in the trainer's turn

    async def wait(self, check: Callable[[], None]) -> None:
        """Wait for the explorer's turn. ``check`` raises when it will not come."""
        while not self._turn.is_mine():
            check()
            await asyncio.sleep(_POLL_S)

    def is_mine(self) -> bool:
        """Return whether it is the explorer's turn."""
        return self._turn.is_mine()

    @property
    def sleeps(self) -> bool:
        """Return whether the engines sleep."""
        return not self._awake

    async def use(self) -> bool:
        """Wake the engines; return whether they were asleep. Call in the explorer's turn only."""
        slept, self._awake = not self._awake, True
        received, self._receives = self._receives, False
        if slept:
            await self._engines.wake()
        elif received:
            await self._engines.resume()
        return slept

    async def use_for_weights(self) -> None:
        """Wake the engines as far as weights need it, in the trainer's turn."""
        if not self._awake:
            await self._engines.wake()
            self._awake = self._receives = True

    async def leave(self) -> None:
        """Put the engines to sleep and give the turn to the trainer."""
        if self._turn.is_mine():
            if self._awake:
                await self._engines.sleep()
            self._awake = False
            self._turn.give()


INITIAL = WeightVersion(version=0, path="", digest="", nbytes=0, method="model path")


class WeightLoader(Protocol):
    """Engines that load weights."""

    async def load(self, version: WeightVersion) -> None:
        """Load a version."""


class EnginesWithDtypes(Protocol):
    """Engines that hold what they have loaded in dtypes of their own."""

    async def dtypes(self) -> Dtypes:
        """Return them; see ``engine_dtypes.py``."""


class DtypesReport:
    """Reports the engines' dtypes to the trainer, which sends weights by them: explorer ``index``'s."""

    def __init__(self, buffer: Buffer, index: int, engines: EnginesWithDtypes) -> None:
        """Withdraw the report of an earlier process, whose engines may have been of another release."""
        self._buffer, self._cell, self._engines = buffer, REPORTED.at(index), engines
        self._versions = 0
        self._cell.set(buffer, None)

    async def started(self) -> None:
        """Report what the model's files were loaded into."""
        self._cell.set(self._buffer, await self._engines.dtypes())

    async def loaded(self) -> None:
        """Report again after the first version, whose names may be others than those of the files."""
        self._versions += 1
        if self._versions == 1:
            await self.started()


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
        dtypes: DtypesReport | None = None,
    ) -> None:
        """Take the arguments of the same names of ``Explorer``."""
        self._engines, self._receiver, self._device, self._sync_check = engines, receiver, device, sync_check
        self._dtypes, self._unchecked = dtypes, False
        self.in_place: WeightVersion | None = INITIAL

    async def load(self, version: WeightVersion) -> bool:
        """Load a version. False where it has no file, as the trainer, two versions ahead, deletes them.

        Engines that slept load it again: the trainer has published one before it gives its first turn away,
        so that there is always one with a file.
        """
        if self._device and await self._device.use():
            self.in_place = None
        if version != self.in_place:
            self.in_place = None
            if version.method == "device":  # lost in a sleep
                return False
            try:
                await self._engines.load(version)
            except RunError:
                if is_available(version):
                    raise
                return False
            self.in_place, self._unchecked = version, True
        if self._unchecked:
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
        """Return the trainer's offer. A device in turns is used for one in the trainer's turn alone."""
        if self._receiver is None or (self._device and self._device.is_mine()):
            return None
        return self._receiver.look()

    async def take(self, offer: WeightOffer) -> bool:
        """Accept an offer. False when that failed: the engines may then hold a mixture of versions."""
        assert self._receiver is not None
        self.in_place = None
        if self._device:
            await self._device.use_for_weights()
        self.in_place, self._unchecked = await self._receiver.take(offer), True
        if not self._device:
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
        self._unchecked = False
        if self._dtypes and self.in_place:
            await self._dtypes.loaded()
        if self._sync_check and self.in_place:
            await self._sync_check.check(self.in_place.version)
