"""Turns on a device that explorer and trainer share (mode ``colocate``).

One value in the buffer's state, written by its holder alone. A side that has to wait for the other gives the
turn away, and does nothing on the device without it. The explorer is first: a new run begins with answers.
"""

from __future__ import annotations

from typing import Literal

from trinity_compat.buffer.store import Buffer
from trinity_compat.job.state_cell import StateCell

Side = Literal["explorer", "trainer"]
TURN = StateCell[Side]("device/turn")


class DeviceTurn:
    """The turn as seen by the side ``me``."""

    def __init__(self, buffer: Buffer, me: Side) -> None:
        self._buffer, self._me = buffer, me

    def is_mine(self) -> bool:
        """Return whether this side may use the device."""
        return (TURN.get(self._buffer) or "explorer") == self._me

    def give(self) -> None:
        """Give the turn to the other side; no-op without the turn."""
        if self.is_mine():
            TURN.set(self._buffer, "trainer" if self._me == "explorer" else "explorer")
