"""Arrays as bytes that a general compressor makes small: numpy's header, then the first byte of each element,
then the second of each, and so on.

The upper bytes of token ids, counters and masks are nearly all zero, exponents of floats are few: side by
side they deflate better than element by element, and faster. No pickles.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def pack(array: Array) -> Iterator[bytes]:
    """Header and elements. Raises ValueError for objects."""
    if array.dtype.hasobject:
        raise ValueError("objects are no plain elements")
    header = io.BytesIO()
    np.lib.format.write_array_header_2_0(header, np.lib.format.header_data_from_array_1_0(_in_order(array)))
    yield header.getvalue()
    if array.size:
        yield _in_order(array).reshape(-1).view(np.uint8).reshape(-1, array.itemsize).T.tobytes()


def unpack(data: bytes) -> Array:
    """Back from ``pack``. Raises ValueError for other bytes; nothing is made that is larger than they are."""
    shape, dtype, begin = _header(data)
    body = np.frombuffer(data, np.uint8, offset=begin)
    turned = np.array(body.reshape(dtype.itemsize, -1).T, order="C")  # a copy: tensors may be written to
    return _filled(turned.reshape(-1), shape, dtype)


def unpack_plain(data: bytes) -> Array:
    """Of bytes as numpy's ``save`` writes them. Raises as ``unpack``."""
    shape, dtype, begin = _header(data)
    return _filled(np.frombuffer(data, np.uint8, offset=begin).copy(), shape, dtype)


def _in_order(array: Array) -> Array:
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _header(data: bytes) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, type, and where the elements begin: so many as fill the rest."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"an array of numpy's format {version}")
    shape, in_columns, dtype = readers[version](stream)
    size = math.prod(shape) * dtype.itemsize
    if in_columns or dtype.hasobject or not dtype.itemsize or min(shape, default=0) < 0:
        raise ValueError(f"an array of {dtype} that is not plain")
    if size != len(data) - stream.tell():
        raise ValueError(f"{len(data) - stream.tell()} bytes of an array of {size}")
    return shape, dtype, stream.tell()


def _filled(elements: npt.NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return elements.view(dtype).reshape(shape)
