"""The starter's end of a killable process: start it, exchange messages, notice its end, kill it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from trinity_compat.common.process_limits import signal_group
from trinity_compat.explorer.sandbox import child_setup
from trinity_compat.explorer.sandbox.child_setup import Start, Surroundings
from trinity_compat.explorer.sandbox.output import RateLimitedOutput

START_S = 600.0  # until a process is ready: it imports the user's modules
_PRELOAD_GUARD = f"{__package__}.preload_guard"
_REAP_S = 1.0
Main = Callable[[socket.socket, Connection, Surroundings, Start, Any], None]  # pickled by its name


class StartFailed(Exception):
    """A process did not become ready; ``broken``: it reported why, and would again."""

    def __init__(self, why: str, *, broken: bool = False) -> None:
        super().__init__(why)
        self.broken = broken

    def of(self, process: str) -> str:
        """Return the message about ``process``."""
        return str(self) if self.broken else f"{process} {self}"


class ProcessDied(Exception):
    """A process ended during a call, for the reason in the text.

    ``certain``: no other call was in it, so this one ended it. ``late``: it was killed because the call took
    too long.
    """

    def __init__(self, how: str, *, certain: bool = False, late: bool = False) -> None:
        super().__init__(how)
        self.certain, self.late = certain, late


def warm(preload: Sequence[str]) -> None:
    """Start the fork server, which imports ``preload`` once, in the background."""
    from multiprocessing import forkserver

    context = get_context("forkserver")
    context.set_forkserver_preload([_PRELOAD_GUARD, child_setup.__name__, *preload])
    forkserver.ensure_running()
    atexit.register(_end_server)


def _end_server() -> None:
    """Kill the fork server: Python's own end waits for exit codes, which a stopped server never sends."""
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    if server._forkserver_pid:
        os.kill(server._forkserver_pid, signal.SIGKILL)


def surroundings() -> Surroundings:
    """This process's working directory and Ray cluster, for users' code that joins it."""
    ray = sys.modules.get("ray")
    address = str(ray.get_runtime_context().gcs_address) if ray and ray.is_initialized() else None
    return Surroundings(str(Path.cwd()), address)


class Process:
    """A killable process.

    ``ready``: its first message; ``spoilt``: it takes no more calls, and is killed after its last.
    """

    def __init__(self, printed: RateLimitedOutput, body: Start, setup: Any) -> None:
        """Prepare a process; ``body`` and ``setup`` as in ``child_setup.main``."""
        self._printed, self._body, self._setup = printed, body, setup
        self._process: BaseProcess | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self._output = -1
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._had_one_call = False
        self.ready: Any = None
        self.dead = self.spoilt = False

    async def start(self) -> None:
        """Start the process, and wait until it is ready.

        Raises StartFailed when it ended, reported that it cannot work, or was not ready in START_S. However
        the start ends without the first message, the process is killed.
        """
        try:
            async with asyncio.timeout(START_S):
                # In a thread: it blocks until the fork server has imported veRL.
                process, channel, self._output = await asyncio.to_thread(
                    _fork, child_setup.main, surroundings(), self._body, self._setup
                )
                self._process = process
                self._printed.attach(self._output, process.pid)
                asyncio.get_running_loop().add_reader(process.sentinel, self.kill)
                stream, self._writer = await asyncio.open_connection(sock=channel)
                ready = await child_setup.read_message(stream)
                self._listener = asyncio.ensure_future(self._listen(stream))
                self.ready = ready
            if self.ready.broken:
                raise StartFailed(self.ready.broken, broken=True)
        except TimeoutError as error:
            raise StartFailed(f"was not ready after {START_S:g} s") from error
        except (EOFError, OSError) as error:
            raise StartFailed(f"ended at its start ({type(error).__name__})") from error
        finally:
            if self.ready is None or self.ready.broken:
                self.kill()

    def send(self, message: object) -> None:
        """Send a message; no-op once the process is dead."""
        if self._writer is not None and not self.dead:
            self._writer.write(child_setup.packed(message))

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        try:
            await child_setup.receive_all(stream, self.receive)
        finally:  # also after a message that cannot be read
            self.kill()

    def receive(self, message: Any) -> None:
        """Process a message; for subclasses."""

    @contextlib.contextmanager
    def calling(self) -> Iterator[tuple[int, asyncio.Future[Any]]]:
        """Enter a call; yield its number, and the future of its result, which fails when the process ends.

        Raises ProcessDied where the process is dead already.
        """
        if self.dead:
            raise ProcessDied("")
        number, result = next(self._numbers), asyncio.get_running_loop().create_future()
        self._calls[number] = result
        try:
            yield number, result
        finally:
            del self._calls[number]

    def kill_late(self, how: str = "") -> ProcessDied:
        """Kill the process, a call of which took too long, and return the call's error."""
        self.kill()
        return ProcessDied(how, certain=self._had_one_call, late=True)

    def kill(self) -> None:
        """Kill the process and all that it started; no-op the second time."""
        if self.dead:
            return
        self.dead = True
        if self._listener:
            self._listener.cancel()
        if self._writer:
            self._writer.close()
        if self._output >= 0:
            self._printed.detach(self._output)
            os.close(self._output)
        if self._process and self._process.pid:
            asyncio.get_running_loop().remove_reader(self._process.sentinel)
            signal_group(self._process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
        cause = self._cause_of_death()
        self._had_one_call = len(self._calls) == 1 and not self.spoilt
        for result in self._calls.values():
            if not result.done():
                result.set_exception(ProcessDied(cause, certain=self._had_one_call))

    def _cause_of_death(self) -> str:
        if self._process is None:
            return ""
        self._process.join(_REAP_S)  # its socket closes a moment before its exit code is known
        code = self._process.exitcode
        if code is None:
            return ""
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _fork(main: Main, *arguments: Any) -> tuple[BaseProcess, socket.socket, int]:
    """Fork a process; return it, the starter's end of its channel, and a descriptor of its prints.

    The process ends when the channel is closed, so the caller may be gone by the time it runs.
    """
    context = get_context("forkserver")
    ours, theirs = socket.socketpair()
    printed, output = context.Pipe(duplex=False)
    with theirs, output, printed:
        process = context.Process(target=main, args=(theirs, output, *arguments), daemon=True)
        process.start()
        return process, ours, os.dup(printed.fileno())
