"""Body of a killable process: its setup, and the channel to its starter.

A message on the channel is a pickle after its length in four bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trinity_compat.common.parent_watch import die_with_parent

_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Ready:
    """First message of a process. ``broken``: why it cannot work."""

    broken: str = ""


@dataclass(frozen=True, slots=True)
class Pickled:
    """A message that its sender has pickled."""

    data: bytes


def packed(message: object) -> bytes:
    """Encode a message. Raises what pickle raises."""
    if isinstance(message, Pickled):
        data = message.data
    else:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


async def read_message(stream: asyncio.StreamReader) -> Any:
    """Read the next message. Raises asyncio.IncompleteReadError when the other process is gone."""
    (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
    return pickle.loads(await stream.readexactly(length))  # noqa: S301 - between our own processes


Send = Callable[[Any], None]
Receive = Callable[[Any], None]
Start = Callable[[Any, Send], tuple[Ready, Receive]]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Working directory and Ray cluster (its address, or None) of the process that starts one."""

    cwd: str
    ray: str | None


def main(
    channel: socket.socket, output: Connection, surroundings: Surroundings, start: Start, setup: Any
) -> None:
    """Serve the starter until it is gone.

    ``start`` returns the first message and the receiver of the starter's messages. Where it raises, the first
    message says why.
    """
    settle(output, surroundings)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(channel, start, setup))
    os._exit(0)


def settle(output: Connection, surroundings: Surroundings) -> None:
    """Set the process up, with its prints going to ``output``."""
    gc.freeze()  # a collection would walk through, and so copy, the pages that the server has imported
    gc.enable()
    os.setsid()  # a process group: killed with all that it started
    die_with_parent(signal.SIGKILL)
    # Python gives each process the descriptor that keeps the fork server alive. Only the starter should hold
    # it: the server ends with the starter, and this process, by the signal set above, with the server.
    server: Any = forkserver._forkserver
    os.close(server._forkserver_alive_fd)
    server.__init__()  # users' code that wants a fork server starts another one
    with contextlib.suppress(OSError):  # out of memory, the kernel kills this process and not its starter
        Path("/proc/self/oom_score_adj").write_text("1000")
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # Users' code may start processes, by the method that it finds under veRL.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    multiprocessing.set_start_method(None, force=True)
    os.chdir(surroundings.cwd)
    if surroundings.ray:
        os.environ["RAY_ADDRESS"] = surroundings.ray


async def _serve(channel: socket.socket, start: Start, setup: Any) -> None:
    stream, writer = await asyncio.open_connection(sock=channel)
    home = os.getpid()

    def send(message: Any) -> None:
        if os.getpid() != home:  # a copy that users' code forked and forgot
            os._exit(0)
        for stream in (sys.stdout, sys.stderr):  # a line without an end, before this process is killed
            with contextlib.suppress(AttributeError, OSError, ValueError):  # users' code may have replaced it
                stream.flush()
        writer.write(packed(message))

    try:
        ready, receive = start(setup, send)
    except BaseException as error:  # whatever the user's modules do when they are imported
        send(Ready(broken=f"{type(error).__name__}: {error}"))
        await writer.drain()
        return
    send(ready)
    await receive_all(stream, receive)


async def receive_all(stream: asyncio.StreamReader, receive: Receive) -> None:
    """Pass on each message until the other process is gone."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            receive(await read_message(stream))
