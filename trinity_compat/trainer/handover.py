"""Weights to the explorers by a collective (``sync_method: nccl``): the trainer's side.

The trainer's process hosts the store and waits until every explorer is ready; then rank 0 of its actor and
the engines' workers meet. A group that broke is formed anew with whoever is there.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import ray
import torch.distributed as dist

from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.model import WeightVersion
from trinity_compat.spec import RunSpec
from trinity_compat.synchronizer.collective import HandoverFailed, Meeting
from trinity_compat.synchronizer.offers import Offer, Offering
from trinity_compat.synchronizer.waiting import SyncTimeout
from trinity_compat.trainer.adapter import Send

MEETING_S = 120.0  # for joining, from the moment when all are ready, and again for each bucket
_POLL_S = 0.01


class Handover:
    """Hands versions over; the group stays from one to the next."""

    def __init__(self, buffer: Buffer, spec: RunSpec, check: Callable[[str], None]) -> None:
        """``check`` is called between looks with what is waited for; what it raises ends the wait."""
        self._offering, self._explorers = Offering(buffer, spec.explorers), spec.explorers
        self._limit, self._check = spec.sync.timeout_s, check
        self._store: dist.TCPStore | None = None
        self._members: dict[str, int] = {}
        self._group = ""

    def send(self, version: int, send: Send) -> WeightVersion:
        """Broadcast ``version`` to every explorer. Raises SyncTimeout, WeightsDamaged."""
        until = time.monotonic() + self._limit
        while True:
            offer = self._offering.open(version)
            members = self._wait_for_members(offer, until)
            try:
                file = send(version, self._meeting(offer, members), lambda: self._check("the weights' way"))
            except HandoverFailed as error:
                why = str(error).strip().splitlines()[-1]  # Ray puts the other process's trace before it
                print(f"[trinity] version {version}: {why}; offered again")
                self._members = {}
                if time.monotonic() > until:
                    raise SyncTimeout(
                        f"version {version} of the weights was not handed over in {self._limit:g} s: {why}",
                        hint="see log/explorer.log; synchronizer.sync_timeout sets the limit",
                    ) from error
                continue
            self._offering.close()
            return WeightVersion(version, "", file.digest, file.nbytes, "nccl")

    def _wait_for_members(self, offer: Offer, until: float) -> dict[str, int]:
        while len(members := self._offering.members(offer)) < self._explorers:
            if time.monotonic() > until:
                raise SyncTimeout(
                    f"version {offer.version} of the weights waited {self._limit:g} s:"
                    f" {len(members)} of {self._explorers} explorers were ready to take it",
                    hint="see log/explorer.log; synchronizer.sync_timeout sets the limit",
                )
            self._check(f"explorers to take version {offer.version}")
            time.sleep(_POLL_S)
        return members

    def _meeting(self, offer: Offer, members: dict[str, int]) -> Meeting:
        if self._store is None:
            self._store = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
        if members != self._members:
            self._members, self._group = members, uuid.uuid4().hex
        meeting = Meeting(
            handover=offer.id,
            group=self._group,
            address=ray.util.get_node_ip_address(),
            port=self._store.port,
            world_size=1 + sum(members.values()),
            version=offer.version,
            timeout_s=min(MEETING_S, self._limit),
            whole_s=self._limit,
        )
        self._offering.meet(offer, meeting, members)
        return meeting
