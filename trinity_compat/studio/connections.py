"""Connections of strangers, who have not shown the token: few, for a short time, shared fairly among users.

Every user of the machine can connect to the studio's port. Without a limit one of them could hold all of its
files and leave the owner out (a slow loris).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

_MOST = 64  # connections of strangers
_STRANGER_S = 30.0  # from a connection to its first request with the token
_SOCKETS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
Peer = tuple[str, int]  # address, port


class Connections:
    """Open connections without a request that had the token, oldest first."""

    def __init__(self, most: int = _MOST, seconds: float = _STRANGER_S) -> None:
        self._most, self._seconds = most, seconds
        self._strangers: dict[Peer, asyncio.Transport] = {}
        self._timers: dict[Peer, asyncio.TimerHandle] = {}

    def opened(self, peer: Peer, transport: asyncio.Transport) -> None:
        """Note a connection. Where there are too many, the oldest of the user with the most is closed."""
        self._strangers[peer] = transport
        self._timers[peer] = asyncio.get_running_loop().call_later(self._seconds, self._close, peer)
        if len(self._strangers) > self._most:
            users = _users(self._strangers)
            largest = Counter(users.values()).most_common(1)[0][0]
            self._close(next(each for each in self._strangers if users[each] == largest))

    def admit(self, peer: object) -> None:
        """Note that a request of the connection had the token: it has no limit."""
        if isinstance(peer, tuple | list) and len(peer) == 2:
            self.closed((str(peer[0]), peer[1]))

    def closed(self, peer: Peer) -> None:
        """Forget a connection."""
        self._strangers.pop(peer, None)
        if timer := self._timers.pop(peer, None):
            timer.cancel()

    def _close(self, peer: Peer) -> None:
        transport = self._strangers.get(peer)
        self.closed(peer)
        if transport is not None:
            transport.abort()  # close() would wait until the peer has read everything

    @property
    def protocol(self) -> type[asyncio.Protocol]:
        """uvicorn's protocol of a connection, which tells of each."""
        connections = self

        class Noted(AutoHTTPProtocol):  # type: ignore[misc,valid-type] # a class chosen by what is installed
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                if peer := _peer(transport):
                    connections.opened(peer, transport)

            def connection_lost(self, exc: Exception | None) -> None:
                if peer := _peer(self.transport):
                    connections.closed(peer)
                super().connection_lost(exc)

        return Noted


def _peer(transport: asyncio.BaseTransport) -> Peer | None:
    """Return the peer as a request's scope has it."""
    found = transport.get_extra_info("peername")
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None


def _users(peers: Iterable[Peer]) -> Mapping[Peer, str]:
    """Return peer → its user on this machine, else its address."""
    owners = dict(_owners())
    return {peer: owners.get(peer[1], peer[0]) if _is_here(peer[0]) else peer[0] for peer in peers}


def _is_here(address: str) -> bool:
    return address.startswith("127.") or address in ("::1", "::ffff:127.0.0.1")


def _owners() -> Iterator[tuple[int, str]]:
    """Yield (port, user) of this machine's connections from a loopback address, by the kernel's list."""
    for file in _SOCKETS:
        with contextlib.suppress(OSError):
            for line in file.read_text().splitlines()[1:]:
                _, local, _, _, _, _, _, user, *_ = line.split()
                yield int(local.rpartition(":")[2], 16), user
