"""Heartbeat of the trainer, which also renews the leases of its claims."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from typing import Self

from trinity_compat.buffer.database import RETRY_S
from trinity_compat.buffer.heartbeat_thread import HeartbeatThread
from trinity_compat.buffer.model import Claim
from trinity_compat.buffer.store import Buffer
from trinity_compat.common.watchdog import LONG, Suspects
from trinity_compat.job.liveness import CLAIM_LEASE_S, promised

BEAT_S = 1.0


class LeaseHeartbeat(HeartbeatThread):
    """Heartbeat thread, a context manager. ``check`` raises ClaimLost, and errors of the database."""

    def __init__(
        self,
        buffer: Buffer,
        name: str,
        *,
        lease_s: float = CLAIM_LEASE_S,
        beat_s: float = BEAT_S,
        limit_s: float | None = None,
    ) -> None:
        super().__init__(
            lambda: nullcontext(buffer),
            "trainer",
            name,
            period_s=beat_s,
            always=promised(),
            limit_s=limit_s,
        )
        self.lease_s, self._buffer = lease_s, buffer
        self._claims: tuple[Claim, ...] = ()
        self._doing = "starting"
        self._renewed = 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._beat(self._buffer)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def say(self, state: str, **detail: object) -> None:
        """Write a new state at once, not with the next heartbeat."""
        self.state, self.detail = state, detail
        self._doing = " ".join([state, *(f"{name} {value}" for name, value in detail.items())])
        self.main.now(self._doing, times=LONG, extra_s=RETRY_S)
        self._beat(self._buffer)

    def check(self) -> None:
        """Raise errors of the thread, and report progress. The main thread calls it while it polls."""
        self.main.progress()
        super().check()

    def record_call(self, method: str, suspects: Suspects) -> None:
        """Record that the main thread calls ``method`` of the training processes."""
        self.main.now(f"{self._doing}, {method} in the training processes", times=LONG, suspects=suspects)

    def note(self, text: str) -> None:
        """Report ``text`` as the base class does, with a heartbeat at once."""
        super().note(text)
        self._beat(self._buffer)

    def keep(self, *claims: Claim) -> None:
        """Renew ``claims``, and no others, from now on."""
        with self._lock:
            self._claims, self._renewed = claims, time.monotonic()

    def after_beat(self, buffer: Buffer) -> None:
        """Renew the claims after a quarter of their lease."""
        # Under the lock, so that keep() after mark_trained never meets a renewal of the same claim.
        with self._lock:
            if self._claims and time.monotonic() - self._renewed > self.lease_s / 4:
                for claim in self._claims:
                    buffer.renew(claim, lease_s=self.lease_s)
                self._renewed = time.monotonic()
