"""Images and other bytes of a task: stored once under their digest, and named by it in the task's JSON.

In memory a task holds ``Media``; its JSON (``typed_json``) holds ``{"__media__": SHA-256, "kind": …,
"nbytes": …}`` in the same place. A group read back has the references, until ``filled`` puts the bytes in
their places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeGuard

import numpy as np

NAME = "__media__"
_DIGEST = 64  # hexadecimal digits


@dataclass(frozen=True, slots=True)
class Media:
    """Bytes that a task's JSON replaces by their digest.

    ``data``: an image file as it is (``kind`` image), the row's own value (bytes, text), or an array in
    numpy's format (array, tensor, numbers: its type in the row).
    """

    data: bytes = field(repr=False)
    kind: str = "bytes"

    @property
    def digest(self) -> str:
        """SHA-256 of the data, in hexadecimal."""
        return sha256(self.data).hexdigest()

    @property
    def reference(self) -> dict[str, object]:
        """Reference to it in JSON."""
        return {NAME: self.digest, "kind": self.kind, "nbytes": len(self.data)}


def found(value: object) -> Iterator[Media]:
    """Every one in a task."""
    if isinstance(value, Media):
        yield value
    for part in _parts(value):
        yield from found(part)


def references(value: object) -> Iterator[Mapping[str, Any]]:
    """References to ``Media`` in a task read from the buffer."""
    if is_reference(value):
        yield value
        return
    for part in _parts(value):
        yield from references(part)


def is_reference(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether it is a reference to a ``Media``."""
    digest = value.get(NAME) if isinstance(value, Mapping) and isinstance(value.get("kind"), str) else None
    return isinstance(digest, str) and len(digest) == _DIGEST


def filled(value: Any, data: Mapping[str, bytes]) -> Any:
    """A copy of a task with ``Media`` where it names one. Raises KeyError for what ``data`` lacks."""
    if is_reference(value):
        return Media(data[value[NAME]], value["kind"])
    return replaced(value, lambda part: filled(part, data))


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """Copy of a container with each of its parts changed.

    Containers are dictionaries, lists, tuples and arrays of objects. Sets and other arrays are copied, other
    values returned.
    """
    if isinstance(value, Mapping):
        return {key: change(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        made = [change(part) for part in value]
        return tuple(made) if isinstance(value, tuple) else made
    if isinstance(value, np.ndarray) and value.dtype == object:
        return np.fromiter(map(change, value.flat), object, value.size).reshape(value.shape)
    return value.copy() if isinstance(value, set | bytearray | np.ndarray) else value


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, np.ndarray) and value.dtype == object:
        yield from value.flat


def image_count(messages: object) -> int:
    """Number of images in a chat, at any depth."""
    return media_counts(messages)["images"]


def media_counts(messages: object) -> dict[str, int]:
    """Number of ``images``, ``videos`` and ``audios`` in a chat.

    Images and videos as in qwen_vl_utils' ``extract_vision_info`` (0.0.14), sounds as in veRL's
    ``_extract_audio_info`` (0.9.1).
    """
    whole = messages if isinstance(messages, list | tuple) else ()
    contents = [message.get("content") for message in whole if isinstance(message, Mapping)]
    parts = [part for content in contents if isinstance(content, list | tuple) for part in content]
    counts = {"images": 0, "videos": 0, "audios": 0}
    for part in parts:
        if kind := _shows(part):
            counts[kind] += 1
    return counts


def _shows(part: Mapping[str, object]) -> str | None:
    named = {part.get("type"), *part}
    if named & {"image", "image_url"}:
        return "images"
    if "video" in named:
        return "videos"
    return "audios" if part.get("type") == "audio" else None
