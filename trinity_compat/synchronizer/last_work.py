"""Waits for the other side that last only from its latest report of work."""

from __future__ import annotations

from trinity_compat.buffer.store import Buffer
from trinity_compat.job.run_spec import RunSpec

_LOOK_S = 1.0  # between two looks into the database: a heartbeat's interval


class LastWork:
    """The latest report of work by processes of ``role``.

    Whoever says "running" makes progress, however slowly: its own watchdog ends it otherwise. Without
    watchdogs (``stall_timeout`` 0) no report counts.
    """

    def __init__(self, buffer: Buffer, spec: RunSpec, role: str) -> None:
        self._buffer, self._role, self._counts = buffer, role, spec.stall_timeout_s is not None
        self._looked = self._worked = float("-inf")

    def waited_s(self, since: float, now: float) -> float:
        """Return the seconds since ``since``, or since the latest report of work where that is later."""
        if self._counts and now - self._looked >= _LOOK_S:
            self._looked = now
            if any(one.role == self._role and one.state == "running" for one in self._buffer.participants()):
                self._worked = now
        return now - max(since, self._worked)
