"""Images, videos and sounds of a task, between veRL's dataset row and ``Media``.

veRL 0.9.1's ``RLHFDataset._build_messages`` puts them into ``raw_prompt``. An image is a PIL image, a
dictionary with the file's bytes and the image opened from them, a data URL or a path; a video a list of such
frames, an array of pixels or a path; a sound an array of samples, a list of them or a path. A path stays a
path, so that both sides open it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from trinity_compat.buffer.media import Media, replaced

_LARGE = 4096  # bytes of an array: a larger one is stored once, beside the JSON
_URLS = ("data:image", "data:video", "data:audio")  # with the file itself behind them
_PNG = {"1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA"}  # the modes that a PNG keeps


def kept(value: Any) -> Any:
    """Copy of a dataset's value with ``Media`` in place of media.

    These are images, bytes, data URLs, large arrays, arrays in parts of a chat, and lists of a sound's
    samples. An image that still has its file's bytes is stored as that file, any other one as a PNG
    (lossless).
    """
    if isinstance(value, Image.Image):
        out = io.BytesIO()
        exif = value.getexif()
        whole = value if value.mode in _PNG else value.convert("RGB")  # as qwen_vl_utils would
        whole.save(out, "PNG", compress_level=1, **({"exif": exif} if exif else {}))
        return Media(out.getvalue(), "image")
    if type(value) is str and value.startswith(_URLS) and "base64," in value:
        return Media(value.encode(), "text")
    if type(value) is bytes:  # not numpy's, which would come back as these
        return Media(value)
    if isinstance(value, np.ndarray) and value.dtype != object and value.nbytes >= _LARGE:
        return Media(_npy(value), "array")
    if isinstance(value, Mapping) and _is_file(value):
        return {**replaced({**value, "image": None}, kept), "image": Media(bytes(value["bytes"]), "image")}
    if isinstance(value, Mapping) and value.get("type") in ("video", "audio"):
        return {name: _kept_array(part, value["type"]) for name, part in value.items()}
    return replaced(value, kept)


def _kept_array(value: Any, kind: str) -> Any:
    """``Media`` for an array in a chat's part of ``kind``, or for a list of a sound's samples."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return Media(_npy(value), "array")
    if isinstance(value, torch.Tensor):
        return Media(_npy(value.numpy(force=True)), "tensor")
    if kind == "audio" and isinstance(value, Mapping):
        return {name: _kept_array(part, kind) for name, part in value.items()}
    if kind == "audio" and isinstance(value, list) and value and all(type(part) is float for part in value):
        return Media(_npy(np.array(value)), "numbers")
    if isinstance(value, list | tuple):
        return type(value)(_kept_array(part, kind) for part in value)
    return kept(value)


def opened(value: Any) -> Any:
    """A copy of a task with what ``kept`` found where it found it.

    Each image is opened once; one that is open is shared with the copy.
    """
    return _opened(value, {})


def _opened(value: Any, known: dict[bytes, Image.Image]) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if not isinstance(value, Media):
        return replaced(value, lambda part: _opened(part, known))
    if value.kind != "image":
        return _READ.get(value.kind, bytes)(value.data)
    if value.data not in known:
        image = Image.open(io.BytesIO(value.data))
        image.load()  # several answers share it, and a lazy load is not safe in threads
        known[value.data] = image
    return known[value.data]


def _npy(array: npt.NDArray[Any]) -> bytes:
    """Encode in numpy's file format, whose header has dtype and shape."""
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def _array(data: bytes) -> npt.NDArray[Any]:
    read: npt.NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return read


_READ: dict[str, Callable[[bytes], Any]] = {
    "text": bytes.decode,
    "array": _array,
    "tensor": lambda data: torch.from_numpy(_array(data)),
    "numbers": lambda data: _array(data).tolist(),
}


def _is_file(part: Mapping[str, Any]) -> bool:
    """Return whether ``image`` is nothing but what ``bytes`` hold."""
    data, image = part.get("bytes"), part.get("image")
    if not (isinstance(data, bytes | bytearray) and isinstance(image, Image.Image)):
        return False
    try:
        own = Image.open(io.BytesIO(data))
        return (own.mode, own.size) == (image.mode, image.size) and own.tobytes() == image.tobytes()
    except OSError:
        return False
