"""Values of a dataset that reach reward functions, agent loops and the trainer, and their types.

These are the types of ``typed_json``: a closed list, since users' values are never stored as pickles.
"""

from __future__ import annotations

import datetime as dt
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any

import numpy as np

from trinity_compat.buffer.media import Media
from trinity_compat.buffer.typed_json import (
    DEEPEST,
    UnstoredValue,
    tagged,
    takes_dtype,
    takes_tensor,
    type_name,
)

_DEEPEST = DEEPEST - 20  # of one field's; a stored group has some more around it
WRITE = "write text, numbers, dates, bytes, lists, dictionaries or arrays"
Place = tuple[Any, object]  # of a part: its container's place and its key, or () and a field's name
Note = Callable[[str, str, str], None]  # place, the value's type, and the type stored instead ("" for none)


def carried(value: Any, field: str, note: Note = lambda *_: None) -> Any:
    """A copy of a field's value in which every part is one that ``typed_json`` takes.

    A value of a subclass becomes its base's (an OrderedDict a dict, a named tuple a tuple), one that has none
    an ``UnstoredValue``; ``note`` is called for each. Images of PIL stay: they become ``Media``.
    """
    notes: list[tuple[str, str, str]] = []
    try:
        made = _carried(value, ((), field), lambda *each: notes.append(each), 0)
    except Exception:  # a mapping or sequence of the user's own class, whose methods may raise anything
        notes.append((field, type_name(type(value)), ""))
        made = UnstoredValue(field, type_name(type(value)))
    for each in notes:
        note(*each)
    return made


def all_carried(value: Any, field: str) -> Any:
    """Copy a value as ``carried`` does, or raise TypeError with the place of an unsupported part."""

    def refuse(place: str, kind: str, instead: str) -> None:
        if not instead:
            raise TypeError(f"{place} holds a {kind}, which cannot be stored; {WRITE}")

    return carried(value, field, refuse)


def _carried(value: Any, place: Place, note: Note, depth: int) -> Any:
    kind = type(value)
    if value is None or kind in _WHOLE:
        return value
    if depth > _DEEPEST:
        return _left_out(place, f"container more than {_DEEPEST} levels down", note)
    if kind is dict:
        return {
            _carried(key, (place, key), note, depth + 1): _carried(part, (place, key), note, depth + 1)
            for key, part in value.items()
        }
    if kind in (list, tuple, set, frozenset):
        return kind(_carried(part, (place, at), note, depth + 1) for at, part in enumerate(value))
    if kind is np.ndarray and value.dtype == object:
        parts = [_carried(part, (place, at), note, depth + 1) for at, part in enumerate(value.flat)]
        return np.fromiter(parts, object, len(parts)).reshape(value.shape)
    image = sys.modules.get("PIL.Image")
    if image is not None and isinstance(value, image.Image):
        return value
    if takes_tensor(value) or (kind is np.ndarray and takes_dtype(value.dtype)):
        return value
    try:
        tagged(value)
        return value
    except TypeError:
        base = _base_of(value)
    if base is None:
        return _left_out(place, type_name(kind), note)
    note(_path(place), type_name(kind), type_name(type(base)))
    return _carried(base, place, lambda *_: None, depth + 1)


def _left_out(place: Place, kind: str, note: Note) -> UnstoredValue:
    note(_path(place), kind, "")
    return UnstoredValue(_path(place), kind)


def _path(place: Place) -> str:
    above, key = place
    if not above:
        return str(key)
    try:
        shown = repr(key)[:60]
    except Exception:  # of the user's own class, or an integer of more digits than Python writes
        shown = type_name(type(key))
    return f"{_path(above)}[{shown}]"


_WHOLE = {
    bool,
    int,
    float,
    str,
    bytes,
    complex,
    Decimal,
    dt.date,
    dt.timedelta,
    uuid.UUID,
    Media,
    UnstoredValue,
}


def _base_of(value: Any) -> Any:
    """The value of the nearest type on the list from which this one's inherits; None where there is none."""
    for base, made in _BASES:
        if isinstance(value, base):
            return made(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return None if type(value) is torch.Tensor else value.detach().as_subclass(torch.Tensor)
    return None


def _with_offset(value: dt.datetime) -> dt.datetime | None:
    """The time in a zone of its offset alone; None without offset."""
    offset = value.utcoffset()
    zone = None if offset is None else dt.timezone(offset)
    wall = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    return dt.datetime(*wall, tzinfo=zone, fold=value.fold)


_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (bytes, lambda value: bytes(memoryview(value))),
    (bytearray, bytearray),
    (Decimal, lambda value: Decimal(Decimal.__str__(value))),
    (dt.datetime, _with_offset),
    (dt.date, lambda value: dt.date(value.year, value.month, value.day)),
    (dt.timedelta, lambda value: dt.timedelta(value.days, value.seconds, value.microseconds)),
    (Mapping, lambda value: {key: value[key] for key in value}),
    (tuple, tuple),
    (frozenset, frozenset),
    (Set, set),
    (Sequence, list),
    (np.ndarray, lambda value: None if type(value) is np.ndarray else np.array(value, subok=False)),
)


def simple(value: Any) -> Any:
    """Copy of a reward function's extra results, with the types of training's columns.

    numpy's numbers and texts become Python's, arrays of them and tuples become lists; other values stay.
    """
    kind = type(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufU":
        return value if value.dtype == np.longdouble else value.tolist()
    if kind in (list, tuple):
        return [simple(part) for part in value]
    return {key: simple(part) for key, part in value.items()} if kind is dict else value
