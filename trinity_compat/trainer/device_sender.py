"""Trainer's side of the handover on the devices that it shares with the engines (``handover: device``).

A version that is not handed over is written to a file: without an explorer that takes it, after an error of
any rank or worker, and for an explorer that asks for one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.buffer.store import Buffer
from trinity_compat.common.nested import value_at
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.synchronizer.transports.nccl import Rendezvous, TransferFailed
from trinity_compat.synchronizer.transports.nccl_rendezvous import OfferSender
from trinity_compat.trainer.adapter import SendWeights
from trinity_compat.trainer.nccl_sender import MEETING_S, WHOLE_S, last_line

_log = logging.getLogger(__name__)

TAKEN_S = 30.0  # from the offer until the engines have their memory again
_POLL_S = 0.01


class HandoverOnDevices:
    """Hands versions over in the trainer's turn."""

    def __init__(self, buffer: Buffer, spec: RunSpec, check: Callable[[str], None]) -> None:
        """Withdraw an earlier process's offer. ``check`` as ``NcclSender``'s."""
        self._offering, self._check, self._limit = OfferSender(buffer, 1), check, spec.sync.timeout_s
        trainer = value_at(spec.verl, "trainer")
        self._ranks = int(trainer["nnodes"]) * int(trainer["n_gpus_per_node"])
        self._offering.close()

    def send(self, version: int, send: SendWeights) -> WeightVersion | None:
        """Hand ``version`` over to every engine's worker; None where that failed."""
        offer = self._offering.open(version)
        try:
            until = time.monotonic() + min(TAKEN_S, self._limit)
            while not (members := self._offering.members(offer)):
                if time.monotonic() > until:
                    raise TransferFailed("the explorer did not come to take it over")
                self._check(f"the explorer to take version {offer.version}")
                time.sleep(_POLL_S)
            if (workers := sum(members.values())) != self._ranks:
                raise TransferFailed(f"{workers} engine workers for {self._ranks} training processes")
            meeting = Rendezvous(
                transfer=offer.id,
                group="",
                address="",
                port=0,
                world_size=1 + self._ranks,
                version=version,
                timeout_s=min(MEETING_S, self._limit),
                whole_s=WHOLE_S,
            )
            self._offering.meet(offer, meeting, members)
            file = send(version, meeting, lambda: self._check("the weights' way"))
        except TransferFailed as error:
            _log.warning("version %d: %s; written to a file instead", version, last_line(error))
            return None
        finally:
            self._offering.close()
        return WeightVersion(version, "", file.digest, file.nbytes, "device")
