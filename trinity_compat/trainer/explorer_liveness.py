"""Liveness of the explorers for which the trainer waits."""

from __future__ import annotations

import time

from trinity_compat.buffer.heartbeat_thread import SilenceDetector
from trinity_compat.buffer.model import Participant
from trinity_compat.buffer.store import Buffer
from trinity_compat.common.errors import RunError
from trinity_compat.common.watchdog import Watchdog
from trinity_compat.job.liveness import EXPLORER_SILENT_S, RESTART_S


class PeerGone(RunError):
    """No explorer is left to make the groups that the trainer waits for: exit code 3."""


POLL_S = 0.5


class ExplorerWatch:
    """Reads the explorers' heartbeats, at most twice a second.

    An explorer may be started by hand, so ``start_s`` seconds pass before a missing one counts as gone. The
    others take the tasks of a dead explorer, so the wait ends with the death of the last one, or of the first
    with ``all_needed``; one that has ``restarts`` left is waited for. Outages of the database do not count as
    silence (``SilenceDetector``). Explorers that all wait while the trainer waits for them are deadlocked:
    the wait ends after twice ``stall_s`` without progress of any. Other activities have their own limits.
    """

    def __init__(
        self,
        buffer: Buffer,
        *,
        start_s: float,
        silent_s: float = EXPLORER_SILENT_S,
        all_needed: bool = False,
        stall_s: float | None = None,
    ) -> None:
        self._buffer, self._start_s, self._silent_s = buffer, start_s, silent_s
        self._all_needed = all_needed
        self._since = self._polled = time.monotonic()
        self._silence = SilenceDetector()
        self._watchdog = Watchdog(stall_s, clock=lambda: time.monotonic())
        self._progress = self._watchdog.begin("")
        self._seen: object = None

    def verdict(self, what: str) -> PeerGone | None:
        """Error if ``what`` cannot come: an explorer failed or is silent, or all have ended; else None."""
        now = time.monotonic()
        if now - self._polled < POLL_S:
            return None
        self._polled = now
        explorers = self._explorers()
        self._silence.look()
        if explorers:
            self._since = now
            dead = [explorer for explorer in explorers if self._is_dead(explorer)]
            works = any(explorer.state != "done" for explorer in explorers if explorer not in dead)
            if works and not (dead and self._all_needed):
                return self._stalled(what, [one for one in explorers if one not in dead])
            fates = "; ".join(f"explorer {one.name} {_fate(one)}" for one in dead or explorers)
            return PeerGone(f"waiting for {what}, but {fates}", hint="see log/explorer.log")
        if now - self._since > self._start_s:
            return PeerGone(f"waited {self._start_s:g} s for {what}: no explorer has started")
        return None

    def _stalled(self, what: str, explorers: list[Participant]) -> PeerGone | None:
        """Error if living explorers are deadlocked with the trainer; else None."""
        self._watchdog.tick()
        seen = what, [(one.name, one.detail.get("progress")) for one in explorers]
        idle = all(one.state == "waiting" and not one.detail.get("doing") for one in explorers)
        if seen != self._seen or not idle:
            self._seen = seen
            self._progress.now(what, times=2.0)
        if not (found := self._watchdog.look()):
            return None
        names = ", ".join(one.name for one in explorers)
        return PeerGone(
            f"waited {found.idle_s:.0f} s for {what}, while {names} waited too and made no progress",
            hint="see log/explorer.log; trinity_compat.stall_timeout sets the limit to half of this",
        )

    def check_alive(self, what: str) -> None:
        """Raise PeerGone if an explorer has died and none is left.

        Explorers that are done, or have not started, do not stop a trainer that has groups to train.
        """
        found = self.verdict(what)
        if found and any(self._is_dead(one) for one in self._explorers()):
            raise found

    def _explorers(self) -> list[Participant]:
        return [one for one in self._buffer.participants(writable=True) if one.role == "explorer"]

    def _is_dead(self, explorer: Participant) -> bool:
        if explorer.state in ("done", "stopped"):
            return explorer.state == "stopped"
        silent_s = self._silence.silent_s(explorer)
        if explorer.detail.get("restarts"):
            return silent_s > RESTART_S
        return explorer.state == "failed" or silent_s > self._silent_s


def _fate(explorer: Participant) -> str:
    if explorer.state == "failed":
        return f"failed: {explorer.detail.get('reason', 'no reason given')}"
    if explorer.state == "stopped":
        return f"was stopped: {explorer.detail.get('reason', 'by a signal')}"
    if explorer.state == "done":
        return "is done"
    return f"was last heard of {explorer.age_s:.0f} s ago"
