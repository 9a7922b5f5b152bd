"""Addresses of the teachers' servers, and the key that their clients send."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trinity_compat.common.errors import RunError
from trinity_compat.explorer.served.address import ServedRole

if TYPE_CHECKING:  # a dry run works without the packages of a run
    from trinity_compat.buffer.store import Buffer

ROLE = "teachers"
TOKEN = "TRINITY_COMPAT_TEACHERS"
_SERVED = ServedRole(ROLE, TOKEN, key="distillation.enabled", subject="the teachers are")


def key() -> str:
    """Return the key of this start's servers, which are reachable by other users: the token, a random text.

    Raises RunError outside of a start.
    """
    if not (found := os.environ.get(TOKEN)):
        raise RunError(f"{TOKEN} is not set: the key of the teachers' servers")
    return found


def store_addresses(buffer: Buffer, addresses: Sequence[str], place: int) -> None:
    """Store the addresses (host:port) of the servers of the teacher at ``place``."""
    _SERVED.cell(place).set(buffer, " ".join(addresses))


def load_addresses(buffer: Buffer, place: int) -> list[str]:
    """Return the addresses of this start; none before they are stored."""
    return (_SERVED.cell(place).get(buffer) or "").split()


async def wait_for_addresses(
    buffer: Buffer, check: Callable[[], None], *, timeout_s: float, teachers: int
) -> None:
    """Wait for the addresses of all teachers; see ``ServedRole.wait``."""
    for place in range(teachers):
        await _SERVED.wait(buffer, check, timeout_s=timeout_s, place=place)
