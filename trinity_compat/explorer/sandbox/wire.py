"""Messages between a process of ours and those it starts: pickles, each after its length in four bytes."""

from __future__ import annotations

import asyncio
import pickle
import struct
from typing import Any

_LENGTH = struct.Struct("!I")


def framed(data: bytes) -> bytes:
    """A pickle, ready to be written."""
    return _LENGTH.pack(len(data)) + data


def packed(message: object) -> bytes:
    """As bytes. Raises what pickle raises."""
    return framed(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


async def read(stream: asyncio.StreamReader) -> Any:
    """The next message. Raises asyncio.IncompleteReadError when the other side is gone."""
    (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
    return pickle.loads(await stream.readexactly(length))  # noqa: S301 - between our own processes
