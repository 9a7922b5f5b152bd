"""The silence of each process of a run, as its supervisor measures it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from trinity_compat.buffer.errors import BufferError
from trinity_compat.buffer.heartbeat_thread import SilenceDetector
from trinity_compat.buffer.model import Participant
from trinity_compat.buffer.store import Buffer
from trinity_compat.job.liveness import ENDED

WAIT_S = 1.0  # of a supervisor for its database: it must notice children and signals meanwhile
_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """A process's last state, and the seconds since its last heartbeat."""

    state: str
    silent_s: float
    doing: str = ""

    @property
    def has_ended(self) -> bool:
        """True once the process has reported its end."""
        return self.state in ENDED


class Heartbeats:
    """The last heartbeats read. An outage or a lock of the database counts as no process's silence."""

    def __init__(self, sight: SilenceDetector | None = None) -> None:
        self._sight = sight or SilenceDetector()
        self._seen_s = 0.0  # since the first look of an unbroken row
        self._heard: dict[tuple[str, int], LastHeartbeat] = {}
        self._next = 0.0

    def read(self, buffer: Buffer) -> None:
        """Read at most once a second, unless the database is out of reach or locked by another program."""
        if time.monotonic() < self._next:
            return
        with suppress(BufferError):
            self.look(buffer.participants(writable=True))
        self._next = time.monotonic() + _EVERY_S

    def look(self, everybody: Iterable[Participant]) -> None:
        """Record a successful read of the database."""
        before, self._seen_s = self._seen_s, self._sight.look()
        passed_s = max(self._seen_s - before, 0.0)
        # A history that begins hides everybody until the next heartbeat.
        hidden = {key: replace(each, silent_s=each.silent_s + passed_s) for key, each in self._heard.items()}
        here = socket.gethostname()
        self._heard = hidden | {
            (who.role, who.pid): LastHeartbeat(
                who.state, self._sight.silent_s(who), str(who.detail.get("doing") or "")
            )
            for who in everybody
            if who.host == here
        }

    def of(self, role: str, pid: int) -> LastHeartbeat | None:
        """The last heartbeat of a process, None before its first."""
        return self._heard.get((role, pid))
