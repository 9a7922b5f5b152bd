"""Output of users' code in killable processes, on its way to the explorer's log.

Each line is marked with its process; the volume is limited.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from trinity_compat.common.user_output import mark

PER_MINUTE = 1 << 20  # bytes, of all processes of a pool together
_CHUNK = 1 << 16


class RateLimitedOutput:
    """Reads everything, so that no process waits for a full pipe; passes on PER_MINUTE bytes.

    ``name``: what the processes run, one of ``trinity_compat.common.user_output``.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[bytes], object] = lambda data: os.write(1, data),
        per_minute: int = PER_MINUTE,
    ) -> None:
        self._name, self._write, self._limit = name, write, per_minute
        self._since, self._passed, self._dropped = time.monotonic(), 0, 0
        self._open: dict[int, tuple[bytes, bytes]] = {}  # by descriptor: its mark, and an unfinished line

    def attach(self, fd: int, pid: int | None) -> None:
        """Read the prints of process ``pid`` from ``fd`` as they come, until its end."""
        os.set_blocking(fd, False)
        self._open[fd] = mark(self._name, pid).encode(), b""
        asyncio.get_running_loop().add_reader(fd, self._take, fd)

    def detach(self, fd: int) -> None:
        """Pass on what was printed so far, and stop reading."""
        asyncio.get_running_loop().remove_reader(fd)
        self._take(fd)
        before, rest = self._open.pop(fd, (b"", b""))
        if rest:
            self.add(before + rest + b"\n")

    def _take(self, fd: int) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(fd)
        before, begun = self._open[fd]
        *lines, rest = (begun + data).split(b"\n")
        if len(rest) > _CHUNK:
            lines, rest = [*lines, rest], b""
        self._open[fd] = before, rest
        self.add(b"".join(before + line + b"\n" for line in lines))

    def add(self, data: bytes) -> None:
        """Pass on as much as this minute's limit allows."""
        now = time.monotonic()
        if now - self._since > 60:
            self.report_dropped()
            self._since, self._passed = now, 0
        room = max(0, self._limit - self._passed)
        self._passed += len(data[:room])
        self._dropped += len(data[room:])
        if data[:room]:
            self._write(data[:room])

    def report_dropped(self) -> None:
        """Write how much was left out."""
        if self._dropped:
            self._write(f"\n{mark(self._name, None)}[{self._dropped} bytes more, left out]\n".encode())
        self._dropped = 0
