"""Whether anybody is left to make what the trainer waits for."""

from __future__ import annotations

import time

from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.model import Participant
from trinity_compat.buffer.silence_detector import SilenceDetector
from trinity_compat.common.watchdog import Watchdog
from trinity_compat.job.restarts import RESTART_S
from trinity_compat.trainer.errors import PeerGone

SILENT_S = 9.0  # with the look below, a death is known within 10 s
LOOK_EVERY_S = 0.5


class ExplorerWatch:
    """Looks at the explorers' heartbeats, at most twice a second.

    While none is seen, ``start_s`` seconds are allowed: it may be started by hand, later. The tasks of one
    that dies go to the others, so the wait ends with the last of them, or with the first where
    ``all_needed``; one that says that it has ``restarts`` left is waited for. An outage of the database is
    nobody's silence (``Sight``). Explorers that live and wait, all of them, while the trainer waits for them,
    wait for ever: after twice ``stall_s`` without progress of any that ends too. What one of them does
    meanwhile has a limit of its own.
    """

    def __init__(
        self,
        buffer: Buffer,
        *,
        start_s: float,
        silent_s: float = SILENT_S,
        all_needed: bool = False,
        stall_s: float | None = None,
    ) -> None:
        self._buffer, self._start_s, self._silent_s = buffer, start_s, silent_s
        self._all_needed = all_needed
        self._since = self._looked = time.monotonic()
        self._sight = SilenceDetector()
        self._watchdog = Watchdog(stall_s, clock=lambda: time.monotonic())
        self._progress = self._watchdog.begin("")
        self._seen: object = None

    def verdict(self, what: str) -> PeerGone | None:
        """Why ``what`` will not come: an explorer failed or fell silent, or all have ended. None: it may."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY_S:
            return None
        self._looked = now
        explorers = self._explorers()
        self._sight.look()
        if explorers:
            self._since = now
            dead = [explorer for explorer in explorers if self._is_dead(explorer)]
            works = any(explorer.state != "done" for explorer in explorers if explorer not in dead)
            if works and not (dead and self._all_needed):
                return self._stalled(what, [one for one in explorers if one not in dead])
            return PeerGone(
                f"waiting for {what}, but {_fates(dead or explorers)}", hint="see log/explorer.log"
            )
        if now - self._since > self._start_s:
            return PeerGone(f"waited {self._start_s:g} s for {what}: no explorer has started")
        return None

    def _stalled(self, what: str, explorers: list[Participant]) -> PeerGone | None:
        """Why explorers that live will never make it."""
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
        """Raises PeerGone once none is left that lives.

        One that ended, or never came, is no trouble to a trainer that has groups to go on with.
        """
        found = self.verdict(what)
        if found and any(self._is_dead(one) for one in self._explorers()):
            raise found

    def _explorers(self) -> list[Participant]:
        return [one for one in self._buffer.participants() if one.role == "explorer"]

    def _is_dead(self, explorer: Participant) -> bool:
        if explorer.state in ("done", "stopped"):
            return explorer.state == "stopped"
        silent_s = self._sight.silent_s(explorer)
        if explorer.detail.get("restarts"):
            return silent_s > RESTART_S
        return explorer.state == "failed" or silent_s > self._silent_s


def _fates(explorers: list[Participant]) -> str:
    return "; ".join(f"explorer {e.name} {_fate(e)}" for e in explorers)


def _fate(explorer: Participant) -> str:
    if explorer.state == "failed":
        return f"failed: {explorer.detail.get('reason', 'no reason given')}"
    if explorer.state == "stopped":
        return f"was stopped: {explorer.detail.get('reason', 'by a signal')}"
    if explorer.state == "done":
        return "is done"
    return f"was last heard of {explorer.age_s:.0f} s ago"
