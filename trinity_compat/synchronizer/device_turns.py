"""Whose turn it is on a device that explorer and trainer share (mode ``colocate``).

One value in the buffer's state, written by its holder alone. Whoever has to wait for the other gives it away;
whoever has it not does nothing on the device. The explorer has it first: a new run begins with answers.
"""

from __future__ import annotations

from typing import Literal

from trinity_compat.buffer.api import Buffer

Side = Literal["explorer", "trainer"]
_KEY = "device/turn"


class DeviceTurn:
    """``me``: the side that asks."""

    def __init__(self, buffer: Buffer, me: Side) -> None:
        self._buffer, self._me = buffer, me

    def mine(self) -> bool:
        """Whether this side may use the device."""
        return bool(self._buffer.get_state(_KEY, "explorer") == self._me)

    def give(self) -> None:
        """Let the other side have it; nothing happens without the turn."""
        if self.mine():
            self._buffer.set_state(_KEY, "trainer" if self._me == "explorer" else "explorer")


def reset(buffer: Buffer) -> None:
    """A job starts again: nobody of an earlier start holds anything."""
    buffer.set_state(_KEY, "explorer")
