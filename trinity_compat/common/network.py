"""Where this machine is found."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys

LOOPBACK = "127.0.0.1"


def outward_address() -> str:
    """This machine's address as others see it, the loopback one without a network; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches ``address``."""
    return ipaddress.ip_address(address).is_loopback


def keep_ray_here() -> None:
    """Let a Ray that this process starts, and all that it starts, listen on the loopback address alone.

    ``_node_ip_address`` does not do that: Ray 2.60 replaces 127.0.0.1 by the address that others see
    (``resolve_ip_for_localhost``, ray/_private/services.py) unless it is told that there are no clusters, as
    it tells itself on macOS and Windows. It reads that when it is imported; what joins this Ray must have the
    variable too, and inherits it.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    if constants := sys.modules.get("ray._private.ray_constants"):
        constants.ENABLE_RAY_CLUSTER = False  # type: ignore[attr-defined]
