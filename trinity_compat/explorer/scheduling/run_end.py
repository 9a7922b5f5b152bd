"""Detection of a run's end, from the trainer's mark in the buffer."""

from __future__ import annotations

import time

from trinity_compat.buffer.api import Buffer

GRACE_S = 60.0


class TrainerFinished:
    """Distinguishes this run's mark "finished" from one that an earlier run left in the same database.

    An earlier run's mark counts only GRACE_S after the first check: until then a trainer may start, remove it
    and train on. ``fresh``: the mark did not exist when this process began. Engines take minutes to start,
    and a trainer that other explorers serve may end meanwhile.
    """

    def __init__(self, *, fresh: bool = False) -> None:
        self._first_check: float | None = None
        self._fresh = fresh

    def is_confirmed(self, finished: bool) -> bool:
        """Return whether the run has ended, ``finished`` being whether the mark exists now."""
        now = time.monotonic()
        self._fresh = self._fresh or not finished
        self._first_check = now if self._first_check is None else self._first_check
        return finished and (self._fresh or now - self._first_check > GRACE_S)


class TrainerPresence:
    """Records whether a trainer takes part in the run."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer, self._seen = buffer, False

    def is_seen(self) -> bool:
        """Return whether a trainer's heartbeat was seen at any time.

        A resume, or the start of another process, hides a trainer until its next heartbeat.
        """
        self._seen = self._seen or any(p.role == "trainer" for p in self._buffer.participants())
        return self._seen
