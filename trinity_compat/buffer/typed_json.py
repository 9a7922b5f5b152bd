"""JSON of datasets' and reward functions' values that keeps their types: tagged values, version 1.

Plain JSON is stored byte for byte: None, booleans, texts, integers, finite floats, lists, and dictionaries
with texts as keys. Any other value of the closed list below is an object with one key, ``{"__typed__": [1,
NAME, PAYLOAD]}``. NaN and infinities are ``{"__float__": "nan"}``, as in databases before tags. A dictionary
that looks like a tag is tagged itself (``dict``).

Decoding calls only the constructors listed here; no name in the text is imported or resolved.
"""

from __future__ import annotations

import base64
import datetime as dt
import importlib
import json
import math
import re
import sys
import uuid
import zoneinfo
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from trinity_compat.buffer.media import Media
from trinity_compat.common.errors import RunError

TYPED = "__typed__"
FLOAT = "__float__"
VERSION = 1
DEEPEST = 120  # levels of containers, of up to four levels of JSON: Python's stack bounds its reader

_DTYPE = re.compile(r"[<>|=]?(?:[biufc]\d{1,2}|[SU]\d{1,9}|[Mm]8(?:\[\d{0,9}[a-zA-Zμ]{1,7}\])?)")
_TORCH = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


class Unreadable(RunError):
    """A stored value that this release cannot decode."""


class UnstoredValue:
    """Placeholder in a task for a value that cannot be stored.

    Any use of it raises, so that no reward is computed from it by accident.
    """

    __slots__ = ("kind", "place")

    def __init__(self, place: str, kind: str) -> None:
        self.place, self.kind = place, kind

    def __repr__(self) -> str:
        return f"<{self.place}: a {self.kind}, left out>"

    def _used(self, *_: object) -> Any:
        raise TypeError(f"{self.place} held a {self.kind}, which cannot be carried from the dataset to here")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pickle, copy and numpy look for optional methods
            raise AttributeError(name)
        return self._used()

    __str__ = __bool__ = __eq__ = __ne__ = __len__ = __iter__ = __getitem__ = __call__ = __float__ = _used
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __int__ = __index__ = _used
    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return UnstoredValue, (self.place, self.kind)


# -- writing ----------------------------------------------------------------------------------------


def dumps(value: object) -> str:
    """JSON of a value, ASCII alone.

    ``Media`` become their references. Raises TypeError, which names the type, for a value that is not on the
    list.
    """
    return _encode(tagged(value))


def tagged(value: Any, depth: int = 0) -> Any:
    """Encode a value as ``dumps`` does, before it is text. Raises TypeError."""
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return value
    if kind is int:
        # Python refuses to read and write integers of more than 4,300 digits in decimal.
        return value if value.bit_length() < 13000 else _tag("int", hex(value))
    if kind is float:
        return value if math.isfinite(value) else {FLOAT: str(value)}
    if depth > DEEPEST:
        raise TypeError(f"containers inside each other, more than {DEEPEST} deep")
    if kind is list:
        return [tagged(part, depth + 1) for part in value]
    if kind is dict:
        if all(type(key) is str for key in value) and not (
            len(value) == 1 and (TYPED in value or FLOAT in value)
        ):
            return {key: tagged(part, depth + 1) for key, part in value.items()}
        pairs = [[tagged(key, depth + 1), tagged(part, depth + 1)] for key, part in value.items()]
        return _tag("dict", pairs)
    if kind is Media:
        return value.reference
    if write := _WRITERS.get(kind):
        name, payload = write(value, depth + 1)
    elif isinstance(value, np.generic) and type(value) is value.dtype.type:
        name, payload = "numpy", _scalar(value)
    elif kind is np.ndarray:
        name, payload = "ndarray", _array(value, depth + 1)
    else:
        name, payload = _of_a_library(value)
    return _tag(name, payload)


def _tag(name: str, payload: object) -> dict[str, object]:
    return {TYPED: [VERSION, name, payload]}


def _parts(value: Any, depth: int) -> list[object]:
    return [tagged(part, depth) for part in value]


def _unordered(value: Any, depth: int) -> list[object]:
    """Sorted by their text, so that equal sets have equal texts."""
    return sorted(_parts(value, depth), key=_encode)


def _of_zone(zone: dt.tzinfo | None) -> object:
    """Encode a zone: None, ``["offset", µs, name]`` or ``["zone", key]``.

    The first is datetime.timezone's (with its own name, else None), the second zoneinfo's. Raises TypeError
    for other classes.
    """
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        offset, name = zone.utcoffset(None), zone.tzname(None)
        own = None if name == dt.timezone(offset).tzname(None) else name
        return ["offset", offset // dt.timedelta(microseconds=1), own]
    if type(zone) is zoneinfo.ZoneInfo and zone.key:
        return ["zone", zone.key]
    raise TypeError(f"a time zone of type {type_name(type(zone))}")


def _moment(value: dt.datetime | dt.time) -> list[object]:
    """Wall clock, fold and zone of a time."""
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _of_zone(value.tzinfo)]


_WRITERS: dict[type, Callable[[Any, int], tuple[str, object]]] = {
    tuple: lambda value, depth: ("tuple", _parts(value, depth)),
    set: lambda value, depth: ("set", _unordered(value, depth)),
    frozenset: lambda value, depth: ("frozenset", _unordered(value, depth)),
    bytes: lambda value, _: ("bytes", _text(value)),
    bytearray: lambda value, _: ("bytearray", _text(value)),
    complex: lambda value, _: ("complex", [tagged(value.real), tagged(value.imag)]),
    Decimal: lambda value, _: ("decimal", str(value)),
    dt.datetime: lambda value, _: ("datetime", _moment(value)),
    dt.date: lambda value, _: ("date", value.isoformat()),
    dt.time: lambda value, _: ("time", _moment(value)),
    dt.timedelta: lambda value, _: ("timedelta", [value.days, value.seconds, value.microseconds]),
    uuid.UUID: lambda value, _: ("uuid", value.hex),
    UnstoredValue: lambda value, _: ("left out", [value.place, value.kind]),
}


def _text(data: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(data).decode("ascii")


def _scalar(value: np.generic) -> list[object]:
    """Its dtype and bytes; a text's or bytes' own, since numpy drops what is zero at their end."""
    if isinstance(value, np.str_):
        return ["U", str(value)]
    if isinstance(value, np.bytes_):
        return ["S", _text(bytes(value))]
    return [_dtype(value.dtype), _text(value.tobytes())]


def _array(value: npt.NDArray[Any], depth: int) -> list[object]:
    """dtype, shape, and bytes in C order; of an array of objects its elements."""
    shape = list(value.shape)
    if value.dtype == object:
        return ["O", shape, _parts(value.flat, depth)]
    return [_dtype(value.dtype), shape, _text(value.tobytes())]


def _dtype(dtype: np.dtype[Any]) -> str:
    if not takes_dtype(dtype):
        raise TypeError(f"a numpy value of dtype {dtype}")
    return dtype.str


def takes_dtype(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of it can be written: not of structured and of user-defined ones."""
    return bool(dtype.itemsize and _DTYPE.fullmatch(dtype.str))


def takes_tensor(value: Any) -> bool:
    """Return whether it is a tensor that can be written: dense, of a plain type."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and type(value) is torch.Tensor
        and str(value.dtype).removeprefix("torch.") in _TORCH
        and value.layout is torch.strided
        and not value.is_nested
    )


def _of_a_library(value: Any) -> tuple[str, object]:
    """Encode a value of pandas or torch, if a caller has imported them. Raises TypeError."""
    kind = type(value)
    pandas = sys.modules.get("pandas")
    if pandas is not None:
        if value is pandas.NaT:
            return "NaT", None
        if value is getattr(pandas, "NA", None):
            return "NA", None
        if kind is pandas.Timestamp:
            moment = value.to_datetime64()  # in UTC, with the value's own unit
            return "Timestamp", [moment.dtype.str, int(moment.view("i8")), _of_zone(value.tzinfo)]
        if kind is pandas.Timedelta:
            span = value.to_timedelta64()
            return "Timedelta", [span.dtype.str, int(span.view("i8"))]
    if takes_tensor(value):
        dense = value.detach().cpu().contiguous().resolve_conj()
        name = str(value.dtype).removeprefix("torch.")
        # numpy has no bfloat16.
        bits = dense.view(sys.modules["torch"].int16) if name == "bfloat16" else dense
        return "tensor", [name, list(value.shape), _text(bits.numpy().tobytes())]
    raise TypeError(f"a value of type {type_name(kind)}")


def type_name(kind: type) -> str:
    """Name of a type as messages have it: without module for builtins."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# -- reading ----------------------------------------------------------------------------------------


def loads(text: str) -> Any:
    """Back from ``dumps``, each value of its own type; references to media stay references.

    Raises Unreadable for a tag of a newer version, and for what ``dumps`` never wrote.
    """
    return _loaded(text, _READERS)


def readable(text: str) -> Any:
    """Decode for people and for programs that take plain JSON.

    Each tagged value becomes a text, number or list; neither torch nor pandas is imported. Damaged values
    stay as they are stored.
    """
    return _loaded(text, _SHOWN)


def plain(value: object) -> Any:
    """A value as ``readable`` gives it. Raises TypeError as ``dumps``."""
    return readable(dumps(value))


def _loaded(text: str, readers: Mapping[str, Callable[[Any], Any]]) -> Any:
    if text == "{}":
        return {}
    if f'"{TYPED}"' not in text and f'"{FLOAT}"' not in text:
        return json.loads(text)

    def read(found: dict[str, Any]) -> Any:
        if len(found) != 1:
            return found
        name = found.get(FLOAT)
        if name in ("nan", "inf", "-inf"):
            return float(name)
        if TYPED not in found:
            return found
        try:
            version, kind, payload = found[TYPED]
            if version != VERSION:
                raise ValueError(f"version {version}")
            return readers[kind](payload)
        except Exception as error:  # whatever a constructor raises for a damaged payload
            if readers is _SHOWN:
                return found
            raise Unreadable(
                f"a stored value cannot be read: {str(found)[:120]} ({type(error).__name__}: {error})",
                hint="a newer release of trinity-compat may have written it",
            ) from error

    return json.loads(text, object_hook=read)


def _zone(payload: Any) -> dt.tzinfo | None:
    if payload is None:
        return None
    kind, *rest = payload
    if kind == "offset":
        micros, name = rest
        offset = dt.timedelta(microseconds=micros)
        if name is not None:
            return dt.timezone(offset, name)
        return dt.timezone(offset) if offset else dt.UTC
    if kind == "zone":
        return zoneinfo.ZoneInfo(rest[0])
    raise ValueError(f"a time zone {kind!r}")


def _read_moment(kind: type[dt.datetime] | type[dt.time], payload: Any) -> dt.datetime | dt.time:
    wall, fold, zone = payload
    return kind.fromisoformat(wall).replace(tzinfo=_zone(zone), fold=fold)


def _read_dtype(payload: str) -> np.dtype[Any]:
    if not _DTYPE.fullmatch(payload) or not np.dtype(payload).itemsize:
        raise ValueError(f"a dtype {payload!r}")
    return np.dtype(payload)


def _read_scalar(payload: Any) -> Any:
    name, data = payload
    if name == "U":
        return np.str_(data)
    raw = base64.b64decode(data, validate=True)
    return np.bytes_(raw) if name == "S" else np.frombuffer(raw, _read_dtype(name), 1)[0]


def _read_array(payload: Any) -> npt.NDArray[Any]:
    name, shape, data = payload
    if any(type(each) is not int or each < 0 for each in shape):
        raise ValueError(f"a shape {shape}")
    if name == "O":
        flat = np.fromiter(data, object, len(data))
    else:  # a copy: functions may write into what they are given
        flat = np.frombuffer(base64.b64decode(data, validate=True), _read_dtype(name)).copy()
    return flat.reshape(shape)


def _read_timestamp(payload: Any) -> Any:
    pandas = importlib.import_module("pandas")
    unit, count, zone = payload
    moment = pandas.Timestamp(np.int64(count).view(_read_dtype(unit)))
    return moment if zone is None else moment.tz_localize("UTC").tz_convert(_zone(zone))


def _read_timedelta(payload: Any) -> Any:
    unit, count = payload
    return importlib.import_module("pandas").Timedelta(np.int64(count).view(_read_dtype(unit)))


def _read_tensor(payload: Any) -> Any:
    name, shape, data = payload
    if name not in _TORCH or any(type(each) is not int or each < 0 for each in shape):
        raise ValueError(f"a tensor of {name}, {shape}")
    torch = importlib.import_module("torch")
    dtype, raw = getattr(torch, name), bytearray(base64.b64decode(data, validate=True))
    if len(raw) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(raw)} bytes of a tensor {shape} of {name}")
    return torch.frombuffer(raw, dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)


def _complex_of(payload: Any) -> complex:
    real, imaginary = payload
    return complex(float(real), float(imaginary))


def _bytes_of(payload: str) -> bytes:
    return base64.b64decode(payload, validate=True)


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda payload: int(payload, 16),
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "bytes": _bytes_of,
    "bytearray": lambda payload: bytearray(_bytes_of(payload)),
    "complex": _complex_of,
    "decimal": Decimal,
    "datetime": partial(_read_moment, dt.datetime),
    "date": dt.date.fromisoformat,
    "time": partial(_read_moment, dt.time),
    "timedelta": lambda payload: dt.timedelta(*payload),
    "uuid": lambda payload: uuid.UUID(hex=payload),
    "numpy": _read_scalar,
    "ndarray": _read_array,
    "NaT": lambda _: importlib.import_module("pandas").NaT,
    "NA": lambda _: importlib.import_module("pandas").NA,
    "Timestamp": _read_timestamp,
    "Timedelta": _read_timedelta,
    "tensor": _read_tensor,
    "left out": lambda payload: UnstoredValue(*map(str, payload)),
}


def _shown_dict(payload: Any) -> dict[str, Any]:
    """``{1: "a", "1": "b"}`` keeps both: its texts are in quotes then."""
    names = [key if isinstance(key, str) else repr(key) for key, _ in payload]
    if len(set(names)) < len(names):
        names = [repr(key) for key, _ in payload]
    return {name: part for name, (_, part) in zip(names, payload, strict=True)}


def _shown_moment(payload: Any) -> str:
    wall, _, zone = payload
    if zone is None:
        return f"{wall}"
    if zone[0] == "offset":
        return f"{wall}{dt.datetime(1, 1, 1, tzinfo=_zone(zone)):%z}"
    return f"{wall} {zone[1]}"


def _shown_array(payload: Any) -> Any:
    made = _read_array(payload)
    return made.astype(str).tolist() if made.dtype.kind in "MmSc" else _finite(made.tolist())


def _shown_tensor(payload: Any) -> Any:
    name, shape, data = payload
    if name == "bfloat16":
        bits = _read_array(["<u2", shape, data]).astype("<u4") << 16
        return _finite(bits.view("<f4").reshape(shape).tolist())
    return _shown_array([np.dtype(name).str, shape, data])


def _finite(value: Any) -> Any:
    """NaN and infinities as texts: JSON has none, and its readers differ."""
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _shown_scalar(payload: Any) -> Any:
    value = _read_scalar(payload)
    return _finite(value.item()) if value.dtype.kind in "biuf" and value.dtype.itemsize <= 8 else str(value)


_SHOWN: dict[str, Callable[[Any], Any]] = {
    "int": str,
    "dict": _shown_dict,
    **dict.fromkeys(("tuple", "set", "frozenset"), list),
    **dict.fromkeys(("bytes", "bytearray"), lambda payload: f"{len(_bytes_of(payload))} bytes"),
    "complex": lambda payload: str(_complex_of(payload)),
    **dict.fromkeys(("decimal", "date"), str),
    **dict.fromkeys(("datetime", "time"), _shown_moment),
    "timedelta": lambda payload: str(dt.timedelta(*payload)),
    "uuid": lambda payload: str(uuid.UUID(hex=payload)),
    "numpy": _shown_scalar,
    "ndarray": _shown_array,
    **dict.fromkeys(("NaT", "NA"), lambda _: None),
    "Timestamp": lambda payload: (
        str(np.int64(payload[1]).view(_read_dtype(payload[0]))) + (" UTC" if payload[2] else "")
    ),
    "Timedelta": lambda payload: str(np.int64(payload[1]).view(_read_dtype(payload[0]))),
    "tensor": _shown_tensor,
    "left out": lambda payload: f"left out: a {payload[1]}",
}
