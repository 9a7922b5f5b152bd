"""Wire format of killable processes and their starters: pickles, each after its length in four bytes."""

from __future__ import annotations

import asyncio
import pickle
import struct
from dataclasses import dataclass
from typing import Any

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


async def read(stream: asyncio.StreamReader) -> Any:
    """Read the next message. Raises asyncio.IncompleteReadError when the other process is gone."""
    (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
    return pickle.loads(await stream.readexactly(length))  # noqa: S301 - between our own processes
