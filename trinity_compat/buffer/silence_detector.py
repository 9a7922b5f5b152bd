"""Duration of other processes' silence, measured by this process's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from trinity_compat.buffer.model import Participant


class SilenceDetector:
    """Measures for how long heartbeats of others have not changed.

    During an outage of the database no heartbeat arrives, and the first process to reconnect would find all
    others silent. So silence counts only while this process's own reads follow each other by less than
    ``gap_s``. The database's clock may be set, so the age of a heartbeat is not used after its first read.
    """

    def __init__(self, *, gap_s: float = 3.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._gap_s, self._clock = gap_s, clock
        self._since = self._last = self._before = clock()
        self._beats: dict[tuple[str, str], tuple[float, float]] = {}  # the beat, and when it was first seen

    def look(self) -> float:
        """Record a successful read; returns seconds since the first one of an unbroken series."""
        now = self._clock()
        if now - self._last > self._gap_s:
            self._since = now
        self._before, self._last = self._last, now
        return now - self._since

    def silent_s(self, other: Participant) -> float:
        """Seconds of silence of ``other``, as read last."""
        who = other.role, other.name
        beat, first_seen = self._beats.get(who, (None, 0.0))
        if beat != other.beat_at:  # its age counts up to the time since the read before
            unseen_s = self._last - (self._since if beat is None else self._before)
            first_seen = self._last - min(max(other.age_s, 0.0), unseen_s)
            self._beats[who] = other.beat_at, first_seen
        return self._last - max(first_seen, self._since)
