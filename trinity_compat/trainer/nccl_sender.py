"""Trainer's side of sending weights to the explorers by a collective (``sync_method: nccl``).

The trainer's process hosts the store and waits until every explorer is ready; then rank 0 of its actor and
the engines' workers form a group. A broken group is formed again by the processes that are alive.
"""

from __future__ import annotations

import logging
import secrets
import socket
import time
import uuid
from collections.abc import Callable

import ray
import torch.distributed as dist

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.buffer.store import Buffer
from trinity_compat.common.errors import RunError
from trinity_compat.common.network import is_loopback, outward_address
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.synchronizer.last_work import LastWork
from trinity_compat.synchronizer.transports.nccl import LoadFailed, Rendezvous, TransferFailed
from trinity_compat.synchronizer.transports.nccl_rendezvous import OfferSender, WeightOffer
from trinity_compat.synchronizer.versions import SyncTimeout
from trinity_compat.trainer.adapter import SendWeights

_log = logging.getLogger(__name__)

MEETING_S = 120.0  # for joining, from the moment when all are ready, and again for each bucket
# The trainer's other ranks wait for rank 0 in the gathering of a parameter, from before the joining on. Their
# watchdog ends them after torch's default of ten minutes: veRL sets none (workers/engine_workers.py).
WHOLE_S = 600.0 - MEETING_S - 60.0
_POLL_S = 0.01


class NcclSender:
    """Sends versions; the group of processes is reused from one version to the next."""

    def __init__(self, buffer: Buffer, spec: RunSpec, check: Callable[[str], None]) -> None:
        """Create the sender.

        ``check`` is called with the awaited thing while the sender waits; an exception ends the wait.
        """
        self._offering, self._explorers = OfferSender(buffer, spec.explorers), spec.explorers
        self._limit, self._check = spec.sync.timeout_s, check
        self._work = LastWork(buffer, spec, "explorer")
        self._store: dist.TCPStore | None = None
        self._members: dict[str, int] = {}
        self._group, self._secret = "", secrets.token_hex(32)
        self._apart, self._address = spec.mode == "train", ""

    def send(self, version: int, send: SendWeights) -> WeightVersion:
        """Broadcast ``version`` to every explorer. Raises SyncTimeout, WeightsDamaged, RunError."""
        began = time.monotonic()
        while True:
            offer = self._offering.open(version)
            while len(members := self._offering.members(offer)) < self._explorers:
                if self._is_late(began):
                    raise SyncTimeout(
                        f"version {offer.version} of the weights waited {self._limit:g} s:"
                        f" {len(members)} of {self._explorers} explorers were ready to take it",
                        hint="see log/explorer.log; synchronizer.sync_timeout sets the limit",
                    )
                self._check(f"explorers to take version {offer.version}")
                time.sleep(_POLL_S)
            try:
                file = send(version, self._meeting(offer, members), lambda: self._check("the weights' way"))
            except LoadFailed as error:
                raise RunError(
                    f"version {version} of the weights can't be loaded: {last_line(error)}",
                    hint="see log/explorer.log",
                ) from error
            except TransferFailed as error:
                why = last_line(error)
                _log.warning("version %d: %s; offered again", version, why)
                self._members = {}
                if self._is_late(began):
                    raise SyncTimeout(
                        f"version {version} of the weights was not handed over in {self._limit:g} s: {why}",
                        hint="see log/explorer.log; synchronizer.sync_timeout sets the limit",
                    ) from error
                continue
            self._offering.close()
            return WeightVersion(version, "", file.digest, file.nbytes, "nccl")

    def _is_late(self, began: float) -> bool:
        return self._work.waited_s(began, time.monotonic()) > self._limit

    def _meeting(self, offer: WeightOffer, members: dict[str, int]) -> Rendezvous:
        if self._store is None:
            self._address = _address(apart=self._apart)
            self._store = store_at(self._address)
        if members != self._members:
            self._members, self._group = members, uuid.uuid4().hex
        meeting = Rendezvous(
            transfer=offer.id,
            group=self._group,
            address=self._address,
            port=self._store.port,
            world_size=1 + sum(members.values()),
            version=offer.version,
            timeout_s=min(MEETING_S, self._limit),
            whole_s=WHOLE_S,
            secret=self._secret,
        )
        self._offering.meet(offer, meeting, members)
        return meeting


def store_at(address: str) -> dist.TCPStore:
    """A store that listens at ``address`` and nowhere else; TCPStore's own socket would listen everywhere."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=1024)
    port = listener.getsockname()[1]
    return dist.TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def _address(*, apart: bool) -> str:
    """Address at which the explorers reach this process.

    It is that of this process's Ray: the loopback address if the run started it. ``apart``: the explorers
    belong to another command, maybe on another machine.
    """
    address = str(ray.util.get_node_ip_address())
    return outward_address() if apart and is_loopback(address) else address


def last_line(error: Exception) -> str:
    """Last line of an error, after the remote trace that Ray puts before it."""
    return str(error).strip().splitlines()[-1]
