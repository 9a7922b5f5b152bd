"""Images of a task: out of veRL's dataset row into ``Media``, and back for agent loops, rewards and trainer.

veRL 0.9.1's ``RLHFDataset._build_messages`` puts them into ``raw_prompt``: a PIL image, a dictionary with the
file's bytes and the image opened from them, or a path. A path stays a path, so that both sides open it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from PIL import Image

from trinity_compat.buffer.media import Media, replaced

_PNG = {"1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA"}  # the modes that a PNG keeps


def kept(value: Any) -> Any:
    """A dataset's value with ``Media`` for images and bytes. An image that is its file's bytes beside it is
    kept as that file, any other one as a PNG, which loses nothing."""
    if isinstance(value, Image.Image):
        return Media(_png(value), "image")
    if isinstance(value, bytes | bytearray | memoryview):
        return Media(bytes(value))
    if isinstance(value, Mapping) and _is_file(value):
        return {**replaced({**value, "image": None}, kept), "image": Media(bytes(value["bytes"]), "image")}
    return replaced(value, kept)


def opened(value: Any) -> Any:
    """A copy of a task with images and bytes where ``kept`` found them. Each image is opened once; one that
    is open is shared with the copy."""
    return _opened(value, {})


def _opened(value: Any, known: dict[bytes, Image.Image]) -> Any:
    if not isinstance(value, Media):
        return replaced(value, lambda part: _opened(part, known))
    if value.kind != "image":
        return value.data
    if value.data not in known:
        known[value.data] = _open(value.data)
    return known[value.data]


def _open(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()  # several answers share it: a file that is read when first asked for is not safe in threads
    return image


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    exif = image.getexif()
    whole = image if image.mode in _PNG else image.convert("RGB")  # as qwen_vl_utils would
    whole.save(out, "PNG", compress_level=1, **({"exif": exif} if exif else {}))
    return out.getvalue()


def _is_file(part: Mapping[str, Any]) -> bool:
    """Whether ``image`` is nothing but what ``bytes`` hold."""
    data, image = part.get("bytes"), part.get("image")
    if not (isinstance(data, bytes | bytearray) and isinstance(image, Image.Image)):
        return False
    try:
        own = Image.open(io.BytesIO(data))
        return (own.mode, own.size) == (image.mode, image.size) and own.tobytes() == image.tobytes()
    except OSError:
        return False
