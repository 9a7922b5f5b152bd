"""Text that users' code prints in killable processes: it goes to the explorer's log, each line marked with
its process, and no more of it than a log can bear."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from trinity_compat.common.user_output import mark

PER_MINUTE = 1 << 20  # bytes, of all processes of a pool together
_CHUNK = 1 << 16


class RateLimitedOutput:
    """Takes everything, so that nobody waits for a full pipe; passes on PER_MINUTE bytes.

    ``name``: what the processes run, one of ``trinity_compat.common.user_output``.
    """

    def __init__(self, name: str, write: Callable[[bytes], object], per_minute: int = PER_MINUTE) -> None:
        self._name, self._write, self._limit = name, write, per_minute
        self._since, self._passed, self._dropped = time.monotonic(), 0, 0
        self._open: dict[int, tuple[bytes, bytes]] = {}  # by fd: its mark, and a line without an end yet

    def attach(self, fd: int, pid: int | None) -> None:
        """Read ``fd``, which process ``pid`` prints to, whenever there is something, until its end."""
        os.set_blocking(fd, False)
        self._open[fd] = mark(self._name, pid).encode(), b""
        asyncio.get_running_loop().add_reader(fd, self._take, fd)

    def detach(self, fd: int) -> None:
        """Pass on what is there, and read no more."""
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
            self._write(f"\n{mark(self._name, None)}[{self._dropped} bytes more, left out]\n".encode())
        self._dropped = 0
