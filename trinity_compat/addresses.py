"""Where this machine is found."""

from __future__ import annotations

import ipaddress
import socket

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
