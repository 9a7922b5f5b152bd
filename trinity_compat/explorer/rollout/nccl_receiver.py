"""Weights by a collective (``sync_method: nccl``) or on shared devices: the explorer's side.

No version is stored: the loaded weights are the only copy, so versions are accepted in the order in which the
trainer offers them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.common.errors import RunError
from trinity_compat.common.hung_process import describe, kill
from trinity_compat.explorer.await_with_checks import await_with_checks
from trinity_compat.explorer.rollout.worker_group import RolloutWorkers
from trinity_compat.synchronizer.transports.nccl import Rendezvous, TransferFailed
from trinity_compat.synchronizer.transports.nccl_rendezvous import OfferReceiver, WeightOffer

_log = logging.getLogger(__name__)

_POLL_S = 0.01
ENDS_S = 60.0  # after a bucket's time limit, for engines to return from a transfer that has ended


class Receiver:
    """Receives offered weights into all engines; ``check`` raises when the trainer is gone."""

    def __init__(self, offered: OfferReceiver, workers: RolloutWorkers, check: Callable[[], None]) -> None:
        self._offered, self._workers, self._check = offered, workers, check
        self._last: WeightOffer | None = None

    def look(self) -> WeightOffer | None:
        """Return the trainer's offer if it is new: an offer stays open until all explorers have it."""
        offer = self._offered.look()
        return None if offer == self._last else offer

    async def take(self, offer: WeightOffer) -> WeightVersion | None:
        """Take part in the transfer.

        None when it failed: the engines may then hold a mixture of versions, and the trainer offers again.
        How long it may wait for other explorers is the trainer's matter. Raises WeightsDamaged, RunError for
        engines that don't return from it, and what ``check`` raises.
        """
        self._last = offer
        if self._workers.restarts_an_engine:  # it waits for the explorer's turn, and for a file
            return None
        self._offered.accept(offer)
        while True:
            rendezvous = self._offered.meeting(offer)
            if self._offered.look() != offer:  # after the meeting: it stays there when its offer is withdrawn
                return None
            if rendezvous is not None:
                break
            self._check()
            await asyncio.sleep(_POLL_S)
        try:
            return await self._receive(offer, *rendezvous)
        except TransferFailed as error:
            _log.warning("version %d: %s; waits for another offer", offer.version, error)
            return None

    async def _receive(self, offer: WeightOffer, meeting: Rendezvous, first_rank: int) -> WeightVersion:
        receiving, ended = self._workers.receive(meeting, first_rank), list[float]()

        def check() -> None:
            self._check()
            if self._offered.look() != offer:  # the trainer has ended it; the engines end with it
                ended.append(time.monotonic())
            if ended and time.monotonic() - ended[0] > meeting.timeout_s + ENDS_S:
                raise self._hang(meeting)

        return await await_with_checks(
            receiving, check, limit_s=meeting.over_s, late=lambda: self._hang(meeting)
        )

    def _hang(self, meeting: Rendezvous) -> RunError:
        """Kill the engines that hang, and return the error: Ray's request to end would wait for them too.

        The error is not TransferFailed, since another offer would find the same engines.
        """
        late = self._workers.late()
        named = f": {'; '.join(map(describe, late))}" if late else ""
        for each in late:
            kill(each)
        return RunError(
            f"the engines hang in the transfer of version {meeting.version}{named}",
            hint="--restarts N starts a side that died again",
        )
