"""What reward functions print: on to the explorer's log, as far as a log can bear it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

PER_MINUTE = 1 << 20  # bytes, of all scoring processes together
_CHUNK = 1 << 16


class Printed:
    """Takes everything, so that nobody waits for a full pipe; passes on PER_MINUTE bytes."""

    def __init__(self, write: Callable[[bytes], object], per_minute: int = PER_MINUTE) -> None:
        self._write, self._limit = write, per_minute
        self._since, self._passed, self._dropped = time.monotonic(), 0, 0

    def attach(self, fd: int) -> None:
        """Read ``fd`` whenever there is something, until its end."""
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self._take, fd)

    def detach(self, fd: int) -> None:
        """Pass on what is there, and read no more."""
        asyncio.get_running_loop().remove_reader(fd)
        self._take(fd)

    def _take(self, fd: int) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(fd)
        self.add(data)

    def add(self, data: bytes) -> None:
        """Pass on what this minute has room for."""
        now = time.monotonic()
        if now - self._since > 60:
            self.told()
            self._since, self._passed = now, 0
        room = max(0, self._limit - self._passed)
        self._passed += len(data[:room])
        self._dropped += len(data[room:])
        if data[:room]:
            self._write(data[:room])

    def told(self) -> None:
        """Say how much was left out."""
        if self._dropped:
            self._write(f"\n[reward functions printed {self._dropped} bytes more, left out]\n".encode())
        self._dropped = 0
