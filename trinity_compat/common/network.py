"""Addresses of this machine."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys

LOOPBACK = "127.0.0.1"


def outward_address() -> str:
    """Return this machine's outward address, the loopback one without a network; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])


def is_loopback(address: str) -> bool:
    """Return whether ``address`` is a loopback address."""
    return ipaddress.ip_address(address).is_loopback


def keep_ray_here() -> None:
    """Make a Ray that this process starts listen on the loopback address only.

    ``_node_ip_address`` does not do that: Ray 2.60 replaces 127.0.0.1 by the outward address
    (``resolve_ip_for_localhost``, ray/_private/services.py) unless the variable disables
    clusters, as on macOS and Windows. Ray reads it when it is imported; processes that join this Ray inherit
    it.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    if constants := sys.modules.get("ray._private.ray_constants"):
        constants.ENABLE_RAY_CLUSTER = False  # type: ignore[attr-defined]
