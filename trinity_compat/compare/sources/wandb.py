"""W&B offline runs (``offline-run-*/run-*.wandb``), read without wandb.

The file is a LevelDB log (32 KiB blocks; record: CRC u32, length u16, type u8) after a 7-byte header;
each record is a protobuf Record, whose history (field 2) holds items key/nested_key → JSON. The run's own
record (field 17) holds the configuration that wandb.init was given in the same form (ConfigRecord, field 4).
Source: wandb/proto/wandb_internal.proto and leveldb's doc/log_format.md.
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path

from trinity_compat.common.plain_numbers import is_number
from trinity_compat.compare import protobuf
from trinity_compat.compare.model import RunMetrics, Series

_BLOCK, _FILE_HEADER, _RECORD_HEADER = 32768, 7, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _ITEM, _KEY, _NESTED_KEY, _VALUE_JSON = 2, 1, 1, 2, 16
_RUN, _CONFIG = 17, 4
_VERLS = "actor_rollout_ref"  # a configuration with this section is veRL's


def read(path: Path) -> RunMetrics:
    """Return the history and configuration of a ``.wandb`` file, or of its offline run directory."""
    file = path if path.is_file() else next(iter(sorted(path.glob("*.wandb"))))
    series: dict[str, Series] = {}
    config: dict[str, object] = {}
    notes: list[str] = []
    for index, record in enumerate(_records(file.read_bytes(), notes)):
        try:
            _history(record, index, series)
            config.update(_configuration(record))
        except (protobuf.MalformedMessage, UnicodeDecodeError):
            notes.append(f"{file.name}: record {index} is damaged and was left out")
    meta = {"verl": config} if _VERLS in config else {}
    return RunMetrics(file.stem.removeprefix("run-"), str(path), "wandb", series, meta=meta, notes=notes)


def _records(data: bytes, notes: list[str]) -> Iterator[bytes]:
    if data[:4] != b":W&B":
        notes.append("not a W&B file: its first bytes are not ':W&B'")
        return
    at = _FILE_HEADER
    parts: list[bytes] = []
    while at + _RECORD_HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _RECORD_HEADER:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        start = at + _RECORD_HEADER
        if start + size > len(data):
            notes.append("the last record is unfinished (still being written?)")
            return
        at = start + size
        if kind in (_FULL, _FIRST):
            parts = []
        parts.append(data[start:at])
        if kind in (_FULL, _LAST):
            yield b"".join(parts)


def _history(record: bytes, index: int, series: dict[str, Series]) -> None:
    for number, kind, start, stop in protobuf.fields(record, 0, len(record)):
        if number == _HISTORY and kind == protobuf.BYTES:
            pairs = ((name, _number(text)) for name, text in _pairs(record, start, stop))
            row = {name: value for name, value in pairs if value is not None}
            step = row.pop("_step", index)
            wall = row.pop("_timestamp", math.nan)
            for key, value in row.items():
                if not key.startswith("_"):
                    series.setdefault(key, Series()).add(int(step), value, wall)


def _configuration(record: bytes) -> Iterator[tuple[str, object]]:
    """(section, its content) of a run's record; what is not JSON is left out."""
    for number, kind, start, stop in protobuf.fields(record, 0, len(record)):
        if number != _RUN or kind != protobuf.BYTES:
            continue
        for inner, inner_kind, a, b in protobuf.fields(record, start, stop):
            if inner == _CONFIG and inner_kind == protobuf.BYTES:
                for key, text in _pairs(record, a, b):
                    with contextlib.suppress(ValueError):
                        yield key, json.loads(text)


def _pairs(record: bytes, at: int, end: int) -> Iterator[tuple[str, str]]:
    """(name, JSON) pairs of one history row or configuration."""
    for number, kind, start, stop in protobuf.fields(record, at, end):
        if number != _ITEM or kind != protobuf.BYTES:
            continue
        key, nested, text = "", [], ""
        for inner, _, a, b in protobuf.fields(record, start, stop):
            piece = record[a:b].decode()
            if inner == _KEY:
                key = piece
            elif inner == _NESTED_KEY:
                nested.append(piece)
            elif inner == _VALUE_JSON:
                text = piece
        yield key or ".".join(nested), text


def _number(text: str) -> float | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if value in ("NaN", "Infinity", "-Infinity"):  # wandb writes them as JSON strings
        return float(value)
    return float(value) if is_number(value) else None
