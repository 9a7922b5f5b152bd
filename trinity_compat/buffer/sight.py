"""How long this process has seen the database without a break."""

from __future__ import annotations

import time
from collections.abc import Callable


class Sight:
    """Whoever judges another's silence looks through this.

    While the database is away nobody's heartbeat arrives, and whoever is back first would find all others
    silent. So silence counts only as far as one's own looks followed each other by less than ``gap_s``.
    """

    def __init__(self, *, gap_s: float = 3.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._gap_s, self._clock = gap_s, clock
        self._since = self._last = clock()

    def look(self) -> float:
        """Note a look that reached the database; seconds since the first one of this unbroken row."""
        now = self._clock()
        if now - self._last > self._gap_s:
            self._since = now
        self._last = now
        return now - self._since
