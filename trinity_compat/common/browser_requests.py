"""Requests that a page of another site lets a browser send to a server of this machine.

A browser names the page's origin, and the host under which it reached the server: a name that its owner has
pointed at 127.0.0.1 since (DNS rebinding) is not one of the loopback interface.
"""

from __future__ import annotations

from collections.abc import Callable

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


def is_loopback_name(host: str) -> bool:
    """Return whether a request's Host header names the loopback interface; its port may be a tunnel's."""
    name, colon, port = host.rpartition(":")
    bare = name if colon and port.isdecimal() else host
    return bare.removeprefix("[").removesuffix("]") in LOOPBACK_NAMES


def is_same_origin(header: Callable[[str], str | None]) -> bool:
    """Return whether a request is of no page, or of one of the server's own; ``header`` returns a header.

    By the browser's own word, which no page can set, if it gives one: a proxy may change the host.
    """
    if site := header("sec-fetch-site"):
        return site in ("same-origin", "none")
    return header("origin") in (None, f"http://{header('host') or ''}")
