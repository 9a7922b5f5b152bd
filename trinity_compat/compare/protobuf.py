"""Protocol-buffer wire format, as far as event files need it: fields of a message, no schema.

Reference: https://protobuf.dev/programming-guides/encoding/ .
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_double = struct.Struct("<d").unpack_from
_float = struct.Struct("<f").unpack_from


class MalformedMessage(ValueError):
    """The bytes are no message: a damaged or foreign file."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, position after it). Raises MalformedMessage past the end or after ten bytes."""
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise MalformedMessage("varint past the end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise MalformedMessage("varint too long")


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (field number, wire type, start, end) of each field of the message in data[at:end].

    For a varint, ``start`` is its position; read it with ``varint``. Raises MalformedMessage.
    """
    while at < end:
        key, at = varint(data, at)
        kind = key & 7
        if kind == VARINT:
            stop = varint(data, at)[1]
        elif kind == BYTES:
            size, at = varint(data, at)
            stop = at + size
        elif kind in (FIXED64, FIXED32):
            stop = at + (8 if kind == FIXED64 else 4)
        else:
            raise MalformedMessage(f"wire type {kind}")
        if stop > end:
            raise MalformedMessage("field past the end")
        yield key >> 3, kind, at, stop
        at = stop


def double(data: bytes, at: int) -> float:
    """Little-endian float64 at ``at``."""
    return float(_double(data, at)[0])


def single(data: bytes, at: int) -> float:
    """Little-endian float32 at ``at``."""
    return float(_float(data, at)[0])
