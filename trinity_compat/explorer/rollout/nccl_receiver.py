"""Weights by a collective (``sync_method: nccl``): the explorer's side.

Nothing of a version is kept: what is loaded is all there is, so versions are taken in the order in which the
trainer offers them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.common.errors import RunError
from trinity_compat.common.hung_process import describe, kill
from trinity_compat.explorer.await_with_checks import attended
from trinity_compat.explorer.rollout.worker_group import RolloutWorkers
from trinity_compat.synchronizer.await_version import SyncTimeout
from trinity_compat.synchronizer.transports.nccl import HandoverFailed, Rendezvous
from trinity_compat.synchronizer.transports.nccl_rendezvous import OfferReceiver, WeightOffer

_POLL_S = 0.01
ENDS_S = 60.0  # beside a bucket's limit: for engines to come back from a handover that has ended


class Receiver:
    """``check`` raises when the trainer is gone."""

    def __init__(
        self, offered: OfferReceiver, workers: RolloutWorkers, check: Callable[[], None], *, timeout_s: float
    ) -> None:
        self._offered, self._workers, self._check, self._limit = offered, workers, check, timeout_s
        self._last: WeightOffer | None = None

    def look(self) -> WeightOffer | None:
        """What the trainer offers and was not taken yet: an offer stands until all have it."""
        offer = self._offered.look()
        return None if offer == self._last else offer

    async def take(self, offer: WeightOffer) -> WeightVersion | None:
        """Take part in the handover.

        None when it came to nothing: the engines may hold a mixture then, and the trainer will offer again.
        Raises SyncTimeout, WeightsDamaged, RunError for engines that don't come back from it, and what
        ``check`` raises.
        """
        self._last = offer
        self._offered.accept(offer)
        until = time.monotonic() + self._limit
        while (found := self._offered.meeting(offer)) is None:
            self._check()
            if self._offered.look() != offer:
                return None
            if time.monotonic() > until:
                raise SyncTimeout(
                    f"version {offer.version} was offered, and not handed over in {self._limit:g} s"
                )
            await asyncio.sleep(_POLL_S)
        try:
            return await self._received(offer, *found)
        except HandoverFailed as error:
            print(f"version {offer.version}: {error}; waits for another offer", flush=True)
            return None

    async def _received(self, offer: WeightOffer, meeting: Rendezvous, first_rank: int) -> WeightVersion:
        taking, over = self._workers.receive(meeting, first_rank), list[float]()

        def check() -> None:
            self._check()
            if self._offered.look() != offer:  # the trainer has ended it; the engines end with it
                over.append(time.monotonic())
            if over and time.monotonic() - over[0] > meeting.timeout_s + ENDS_S:
                raise self._hang(meeting)

        return await attended(taking, check, limit_s=meeting.over_s, late=lambda: self._hang(meeting))

    def _hang(self, meeting: Rendezvous) -> RunError:
        """Not HandoverFailed: another offer would find the engines as they are.

        Those that hang are killed: Ray's own request to end would wait for them too.
        """
        late = self._workers.late()
        named = f": {'; '.join(map(describe, late))}" if late else ""
        for each in late:
            kill(each)
        return RunError(
            f"the engines hang in the handover of version {meeting.version}{named}",
            hint="--restarts N starts a side that died again",
        )
