"""The starter's end of a killable process: start it, speak to it, notice that it is gone, kill it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from trinity_compat.explorer.sandbox import child_setup, wire
from trinity_compat.explorer.sandbox.output import RateLimitedOutput

_ORPHAN = f"{__package__}.preload_guard"
_REAP_S = 1.0
Main = Callable[[socket.socket, Connection, Any], None]  # a module's: it is pickled by name


def warm(preload: Sequence[str]) -> None:
    """Start the process that the others are forked from: it imports ``preload`` once, meanwhile."""
    from multiprocessing import forkserver

    context = get_context("forkserver")
    context.set_forkserver_preload([_ORPHAN, child_setup.__name__, *preload])
    forkserver.ensure_running()


def cluster() -> str | None:
    """Ray's address, for users' code that joins it."""
    ray = sys.modules.get("ray")
    return str(ray.get_runtime_context().gcs_address) if ray and ray.is_initialized() else None


class Process:
    """``gone`` is called once, when it is ``dead``."""

    def __init__(self, printed: RateLimitedOutput, gone: Callable[[Any], None]) -> None:
        self._printed, self._gone = printed, gone
        self._process: BaseProcess | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self._output = -1
        self.dead = False

    async def begin(self, main: Main, setup: Any) -> Any:
        """Start it; its first word. Raises asyncio.IncompleteReadError when it ended before."""
        # In a thread: it blocks until the process that it is forked from has imported veRL.
        process, ours, self._output = await asyncio.to_thread(_started, main, setup)
        self._process = process
        self._printed.attach(self._output, process.pid)
        asyncio.get_running_loop().add_reader(process.sentinel, self.kill)
        stream, self._writer = await asyncio.open_connection(sock=ours)
        first = await wire.read(stream)
        self._listener = asyncio.ensure_future(self._listen(stream))
        return first

    def say(self, message: bytes) -> None:
        """Send it; nothing happens once it is gone."""
        if self._writer is not None and not self.dead:
            self._writer.write(message)

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        try:
            await child_setup.heard(stream, self.hear)
        finally:  # also where it says what nobody can read
            self.kill()

    def hear(self, message: Any) -> None:
        """What it says."""

    def died(self, last_words: str) -> None:
        """Tell whoever waits for it."""

    def kill(self) -> None:
        """End the process and all that it started. A second time changes nothing."""
        if self.dead:
            return
        self.dead = True
        self._end()
        self.died(self._last_words())
        self._gone(self)

    def _end(self) -> None:
        if self._listener:
            self._listener.cancel()
        if self._writer:
            self._writer.close()
        if self._output >= 0:
            self._printed.detach(self._output)
            os.close(self._output)
        if self._process and self._process.pid:
            asyncio.get_running_loop().remove_reader(self._process.sentinel)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    def _last_words(self) -> str:
        if self._process is None:
            return ""
        self._process.join(_REAP_S)  # its socket closes a moment before its end is known
        code = self._process.exitcode
        if code is None:
            return ""
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _started(main: Main, setup: Any) -> tuple[BaseProcess, socket.socket, int]:
    """A process, the starter's end of its channel, and where what it prints comes out.

    The channel closed, it ends: so may whoever asked for it have gone meanwhile.
    """
    context = get_context("forkserver")
    ours, theirs = socket.socketpair()
    printed, output = context.Pipe(duplex=False)
    with theirs, output, printed:
        process = context.Process(target=main, args=(theirs, output, setup), daemon=True)
        process.start()
        return process, ours, os.dup(printed.fileno())
