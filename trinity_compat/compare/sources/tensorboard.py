"""TensorBoard event files, read without TensorBoard: 200k scalars in well under a second.

A file is a sequence of TFRecords (length u64, its CRC u32, payload, CRC u32); a payload is an Event
(wall_time=1, step=2, summary=5), a summary a list of Value (tag=1, simple_value=2, tensor=8).
Source: tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto.
"""

from __future__ import annotations

import struct
from pathlib import Path

from trinity_compat.compare import protobuf
from trinity_compat.compare.model import RunMetrics, Series

_length = struct.Struct("<Q").unpack_from
_clock_step = struct.Struct("<d").unpack_from
_single = struct.Struct("<f").unpack_from
_DT_FLOAT, _DT_DOUBLE = 1, 2


def read(directory: Path) -> RunMetrics:
    """All scalars of the event files directly in ``directory``, in the order of their names (start times)."""
    series: dict[str, Series] = {}
    notes: list[str] = []
    for path in sorted(directory.glob("events.out.tfevents*")):
        _read_file(path, series, notes)
    return RunMetrics(directory.name, str(directory), "tensorboard", series, notes=notes)


def _read_file(path: Path, series: dict[str, Series], notes: list[str]) -> None:
    data = path.read_bytes()
    by_tag: dict[bytes, Series] = {}
    at, size = 0, len(data)
    while at + 12 <= size:
        start = at + 12
        end = start + _length(data, at)[0]
        if end + 4 > size:
            break
        try:
            _event(data, start, end, by_tag)
        except (protobuf.MalformedMessage, struct.error, IndexError):
            notes.append(f"{path.name}: damaged at byte {at}; what stands before it was read")
            at = size
            break
        at = end + 4
    if at < size:
        notes.append(f"{path.name}: the last {size - at} bytes are an unfinished record (still written?)")
    for tag, read_series in by_tag.items():
        into = series.setdefault(tag.decode("utf-8", "replace"), Series())
        into.steps.extend(read_series.steps)
        into.values.extend(read_series.values)
        into.walls.extend(read_series.walls)


def _event(data: bytes, at: int, end: int, by_tag: dict[bytes, Series]) -> None:
    """The common shape (wall_time, step, one short scalar) inline; everything else by the general reader."""
    if data[at] == 0x09 and end - at < 128 + 12:
        wall = _clock_step(data, at + 1)[0]
        i = at + 9
        step = 0
        if i < end and data[i] == 0x10:
            step = data[i + 1]
            i += 2
            if step > 0x7F:
                step, i = protobuf.varint(data, i - 1)
        # summary{ value{ tag, simple_value } } with one-byte lengths that fill the record
        if i + 6 < end and data[i] == 0x2A and data[i + 2] == 0x0A and i + 2 + data[i + 1] == end:
            size = data[i + 5]
            tail = i + 6 + size
            if data[i + 4] == 0x0A and tail + 5 == end and data[tail] == 0x15:
                _append(by_tag, data[i + 6 : tail], step, _single(data, tail + 1)[0], wall)
                return
    _general_event(data, at, end, by_tag)


def _append(by_tag: dict[bytes, Series], tag: bytes, step: int, value: float, wall: float) -> None:
    series = by_tag.get(tag)
    if series is None:
        series = by_tag[tag] = Series()
    series.steps.append(step)
    series.values.append(value)
    series.walls.append(wall)


def _general_event(data: bytes, at: int, end: int, by_tag: dict[bytes, Series]) -> None:
    wall, step, summaries = 0.0, 0, []
    for number, kind, start, stop in protobuf.fields(data, at, end):
        if number == 1 and kind == protobuf.FIXED64:
            wall = protobuf.double(data, start)
        elif number == 2 and kind == protobuf.VARINT:
            step = protobuf.varint(data, start)[0]
        elif number == 5 and kind == protobuf.BYTES:
            summaries.append((start, stop))
    for start, stop in summaries:
        for number, kind, inner, inner_stop in protobuf.fields(data, start, stop):
            if number == 1 and kind == protobuf.BYTES:
                tag, value = _value(data, inner, inner_stop)
                if value is not None:
                    _append(by_tag, tag, step, value, wall)


def _value(data: bytes, at: int, end: int) -> tuple[bytes, float | None]:
    tag, value = b"", None
    for number, kind, start, stop in protobuf.fields(data, at, end):
        if number == 1 and kind == protobuf.BYTES:
            tag = data[start:stop]
        elif number == 2 and kind == protobuf.FIXED32:
            value = protobuf.single(data, start)
        elif number == 8 and kind == protobuf.BYTES:
            value = _tensor(data, start, stop)
    return tag, value


def _tensor(data: bytes, at: int, end: int) -> float | None:
    """A scalar TensorProto (dtype=1, tensor_content=4, float_val=5, double_val=6); None for any other."""
    dtype = 0
    for number, kind, start, stop in protobuf.fields(data, at, end):
        if number == 1 and kind == protobuf.VARINT:
            dtype = protobuf.varint(data, start)[0]
        elif number == 4 and stop - start == 4 and dtype == _DT_FLOAT:
            return protobuf.single(data, start)
        elif number == 4 and stop - start == 8 and dtype == _DT_DOUBLE:
            return protobuf.double(data, start)
        elif number == 5 and stop - start == 4:
            return protobuf.single(data, start)
        elif number == 6 and stop - start == 8:
            return protobuf.double(data, start)
    return None
