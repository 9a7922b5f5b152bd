"""Arrays and JSON as they lie in the database. Little-endian int32, float32, uint8; never pickle."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trinity_compat.buffer.media import Media
from trinity_compat.buffer.model import Experience

_INT = np.dtype("<i4")
_FLOAT = np.dtype("<f4")
_FLOAT_NAME = "__float__"  # key of an object that stands for a number which JSON lacks
_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def pack_ints(values: npt.ArrayLike) -> bytes:
    """int32 [N] → 4 N bytes, little-endian."""
    return np.ascontiguousarray(values, dtype=_INT).tobytes()


def pack_floats(values: npt.ArrayLike) -> bytes:
    """float32 [N] → 4 N bytes, little-endian."""
    return np.ascontiguousarray(values, dtype=_FLOAT).tobytes()


def pack_mask(mask: npt.ArrayLike) -> bytes | None:
    """uint8 [N] → N bytes, or None where all are 1: the usual case, not worth its space."""
    array = np.ascontiguousarray(mask, dtype=np.uint8)
    return None if array.all() else array.tobytes()


def unpack_ints(data: bytes) -> npt.NDArray[np.int32]:
    """The array lies on ``data`` itself: read-only, no copy."""
    return np.frombuffer(data, dtype=_INT)


def unpack_floats(data: bytes) -> npt.NDArray[np.float32]:
    """The array lies on ``data`` itself: read-only, no copy."""
    return np.frombuffer(data, dtype=_FLOAT)


def unpack_mask(data: bytes | None, length: int) -> npt.NDArray[np.uint8]:
    """None stands for ones."""
    return np.ones(length, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def to_json(value: object) -> str:
    """JSON that both databases take: NaN becomes {"__float__": "nan"}, infinities
    likewise, numpy becomes Python, ``Media`` their references.

    Raises TypeError for what JSON has no place for.
    """
    if not value and isinstance(value, Mapping):
        return "{}"
    try:
        return _encode(value)
    except (TypeError, ValueError):
        return _encode(_plain(value))


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, Media):
        return value.reference
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT_NAME: str(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"the buffer stores JSON; {type(value).__name__} is not JSON: {value!r:.80}")


def from_json(text: str) -> Any:
    """Back from ``to_json``."""
    if text == "{}":
        return {}
    return json.loads(text, object_hook=_number) if f'"{_FLOAT_NAME}"' in text else json.loads(text)


def _number(found: dict[str, object]) -> object:
    """What ``_plain`` made of a NaN or an infinity; any other object as it is."""
    name = found.get(_FLOAT_NAME) if len(found) == 1 else None
    return float(name) if name in ("nan", "inf", "-inf") else found


def numbers(text: str) -> dict[str, float]:
    """Metrics back from ``to_json``."""
    return {key: float(value) for key, value in from_json(text).items()}


def to_text(text: str) -> str:
    """PostgreSQL's text holds neither NUL nor lone surrogates: both become U+FFFD (the ids stay exact)."""
    if text.isascii() and "\0" not in text:
        return text
    clean = text.replace("\0", "\ufffd")
    return clean.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def check(experience: Experience, key: str) -> None:
    """Raises ValueError where an array's length does not fit the response."""
    length = len(experience.response_ids)
    for name in ("response_mask", "logprobs"):
        if len(getattr(experience, name)) != length:
            found = len(getattr(experience, name))
            raise ValueError(f"group {key!r}, run {experience.run}: {name} has {found} of {length} tokens")
    if experience.min_model_version > experience.max_model_version:
        raise ValueError(f"group {key!r}, run {experience.run}: min_model_version > max_model_version")
