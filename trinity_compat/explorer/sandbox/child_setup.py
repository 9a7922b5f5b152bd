"""What a killable process does first: nothing but the socket to its starter keeps it alive."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from trinity_compat.common.parent_watch import die_with_parent
from trinity_compat.explorer.sandbox import wire

Say = Callable[[Any], None]
Hear = Callable[[Any], None]


def settle(output: Connection, cwd: str, ray: str | None) -> None:
    """What is printed goes to ``output``; ``ray``: the cluster that the starter belongs to."""
    gc.freeze()  # what the server imported: walking through it would also copy its pages
    gc.enable()
    os.setsid()  # a group of its own: killed with all that it started
    die_with_parent(signal.SIGKILL)
    _leave_server()
    with contextlib.suppress(OSError):  # out of memory, the kernel takes this one and not its starter
        Path("/proc/self/oom_score_adj").write_text("1000")
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # Users' code may start processes, and by the method that it would find under veRL.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    multiprocessing.set_start_method(None, force=True)
    os.chdir(cwd)
    if ray:
        os.environ["RAY_ADDRESS"] = ray


def _leave_server() -> None:
    """Python hands each process what keeps the fork server alive.

    The starter alone should: the server ends with it, and with the server, by the signal asked for above,
    this process, whatever it is doing.
    """
    server: Any = forkserver._forkserver
    os.close(server._forkserver_alive_fd)
    server.__init__()  # users' code that wants a fork server starts its own


def serve(
    channel: socket.socket,
    begin: Callable[[Say], Hear],
    broken: Callable[[str], object],
    pack: Callable[[Any], bytes] = wire.packed,
) -> NoReturn:
    """Until the starter is gone.

    ``begin`` says that all is ready and returns who hears the starter's messages; where it raises, ``broken``
    is the message that says why.
    """
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(channel, begin, broken, pack))
    os._exit(0)


async def _serve(
    channel: socket.socket,
    begin: Callable[[Say], Hear],
    broken: Callable[[str], object],
    pack: Callable[[Any], bytes],
) -> None:
    stream, writer = await asyncio.open_connection(sock=channel)
    home = os.getpid()

    def say(message: Any) -> None:
        if os.getpid() != home:  # a copy that users' code forked and forgot
            os._exit(0)
        writer.write(pack(message))

    try:
        hear = begin(say)
    except BaseException as error:  # whatever the user's modules do when they are imported
        say(broken(f"{type(error).__name__}: {error}"))
        await writer.drain()
        return
    await heard(stream, hear)


async def heard(stream: asyncio.StreamReader, hear: Hear) -> None:
    """Hand on each message, until the starter is gone."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            hear(await wire.read(stream))
