"""The number of rows of a parquet file, from its footer: no library, no read of the data.

The footer is a Thrift struct in the compact protocol (parquet-format's FileMetaData); its third
field is the number of rows.
"""

from __future__ import annotations

from pathlib import Path

from trinity_compat.common.paths import from_home
from trinity_compat.common.readable_files import opened

_MAGIC = b"PAR1"
_LARGEST_FOOTER = 64 * 2**20
_NUM_ROWS = 3  # field id in FileMetaData
_FIXED = {1: 0, 2: 0, 3: 1, 7: 8}  # booleans live in the field's header; byte; double
_VARINT = (4, 5, 6)  # i16, i32, i64
_BINARY, _LIST, _SET, _MAP, _STRUCT = 8, 9, 10, 11, 12


def count_rows(file: str, cwd: str = ".") -> int | None:
    """Return the rows of the parquet ``file`` (relative to ``cwd``); None when it cannot be read."""
    path = Path(cwd) / from_home(file)
    if "://" in file or path.suffix != ".parquet":
        return None
    try:
        with opened(path, None) as stream:  # wherever it lies: nothing but the number of rows is shown
            stream.seek(-8, 2)
            length = int.from_bytes(stream.read(4), "little")
            if stream.read(4) != _MAGIC or length > _LARGEST_FOOTER:
                return None
            stream.seek(-8 - length, 2)
            return _Footer(stream.read(length)).number_of_rows()
    except (OSError, ValueError, IndexError, RecursionError):
        return None


class _Footer:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number_of_rows(self) -> int | None:
        """Return the number of rows, the footer's third field."""
        field = 0
        while (kind := self._byte()) != 0:
            field = field + (kind >> 4) if kind >> 4 else _signed(self._varint())
            if field == _NUM_ROWS:
                return _signed(self._varint())
            self._skip(kind & 15)
        return None

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def _skip(self, kind: int, *, element: bool = False) -> None:
        if kind in (1, 2) and element:
            self._at += 1  # inside a list a boolean takes a byte
        elif kind in _FIXED:
            self._at += _FIXED[kind]
        elif kind in _VARINT:
            self._varint()
        elif kind == _BINARY:
            length = self._varint()  # first: it moves on itself
            self._at += length
        elif kind in (_LIST, _SET):
            head = self._byte()
            size = head >> 4 if head >> 4 != 15 else self._varint()
            if size > len(self._data):
                raise ValueError("a list longer than the footer")
            for _ in range(size):
                self._skip(head & 15, element=True)
        elif kind == _STRUCT:
            self._skip_struct()
        else:
            raise ValueError(f"thrift type {kind}")

    def _skip_struct(self) -> None:
        while (kind := self._byte()) != 0:
            if not kind >> 4:
                self._varint()
            self._skip(kind & 15)


def _signed(zigzag: int) -> int:
    return (zigzag >> 1) ^ -(zigzag & 1)
