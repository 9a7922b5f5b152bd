"""The explorer's end of one scoring process: start it, call it, notice that it is gone, kill it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess

from trinity_compat.explorer.scorers import child, wire
from trinity_compat.explorer.scorers.output import Printed
from trinity_compat.explorer.scorers.wire import Call, Ready, Reply

GRACE_S = 5.0  # a process says itself that a call took too long; one that cannot is killed so much later
_ORPHAN = f"{__package__}.orphan"
_PRELOAD = [_ORPHAN, "verl.experimental.reward_loop.reward_loop", child.__name__]


def warm() -> None:
    """Start the process that the others are forked from: it imports veRL once, while engines load."""
    from multiprocessing import forkserver

    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    forkserver.ensure_running()


class Worker:
    """``taken``: calls that it was given a place for; ``spoilt``: it is to end once they have ended.
    ``alone``: kept for a call that may have ended another process. ``crowd``: calls that were under way when
    it died."""

    def __init__(self, printed: Printed, timeout_s: float | None, gone: Callable[[Worker], None]) -> None:
        self._printed, self._timeout_s, self._gone = printed, timeout_s, gone
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._process: BaseProcess | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self._output = -1
        self.ready = Ready()
        self.taken, self.spoilt, self.alone, self.dead = 0, False, False, False
        self.crowd = 0

    async def start(self, setup: child.Setup) -> None:
        """Until it can be called. Raises asyncio.IncompleteReadError when it ended before."""
        # In a thread: it blocks until the process that it is forked from has imported veRL.
        process, ours, self._output = await asyncio.to_thread(_started, setup)
        self._process = process
        self._printed.attach(self._output)
        asyncio.get_running_loop().add_reader(process.sentinel, self.kill)
        stream, self._writer = await asyncio.open_connection(sock=ours)
        self.ready = await wire.read(stream)
        self._listener = asyncio.ensure_future(self._listen(stream))

    async def call(self, call: Call) -> Reply:
        """Its reply; ``died`` where the process ended, or said nothing in time and was killed."""
        assert self._writer is not None
        waiting = asyncio.get_running_loop().create_future()
        if self.dead:  # it died while this call was on its way here, or by it
            return Reply(call.number, kind="died")
        self._calls[call.number] = waiting
        self._writer.write(wire.packed(call))
        try:
            async with asyncio.timeout(self._limit()):
                reply: Reply = await waiting
        except TimeoutError:
            reply = Reply(call.number, kind="timeout")
            self.kill()
        finally:
            self._calls.pop(call.number, None)
        self.spoilt = self.spoilt or (reply.kind == "timeout" and not self.dead)
        return reply

    def _limit(self) -> float | None:
        if self._timeout_s is None or self.ready.has_limit:
            return None
        # A function in the main thread leaves its process no time to look at a clock.
        return self._timeout_s + (GRACE_S if self.ready.lanes > 1 else 0.0)

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                reply = await wire.read(stream)
                waiting = self._calls.get(reply.number)
                if waiting and not waiting.done():
                    waiting.set_result(reply)
        self.kill()

    def kill(self) -> None:
        """End the process and all that it started; its calls have died. A second time changes nothing."""
        if self.dead:
            return
        self.dead, self.crowd = True, len(self._calls)
        self._end()
        for number, waiting in list(self._calls.items()):
            if not waiting.done():
                waiting.set_result(Reply(number, kind="died", message=self._last_words()))
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
        code = self._process.exitcode if self._process else None
        if code is None:
            return ""
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _started(setup: child.Setup) -> tuple[BaseProcess, socket.socket, int]:
    """A process, the explorer's end of its channel, and where what it prints comes out. The channel closed,
    it ends: so may whoever asked for it have gone meanwhile."""
    context = get_context("forkserver")
    ours, theirs = socket.socketpair()
    printed, output = context.Pipe(duplex=False)
    with theirs, output, printed:
        process = context.Process(target=child.main, args=(theirs, output, setup), daemon=True)
        process.start()
        return process, ours, os.dup(printed.fileno())
