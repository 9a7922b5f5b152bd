"""128 bits over weights, at the speed of memory: sums of their 64-bit words, plain and weighted by place.

Any changed word changes it, and so do two swapped words, unless they differ in their highest bits only. It
finds what a disk, a network or a mixed-up file does to weights; it is no defence against intent. How sha256
compares: benchmarks/weight_sync.py.
"""

from __future__ import annotations

from io import FileIO
from pathlib import Path

import torch

_CHUNK = {"cpu": 1 << 16}  # words: a chunk and its product stay in the cache
_CHUNK_ELSEWHERE = 1 << 22
_READ = 4 << 20  # bytes at a time; a multiple of 8


class Checksum:
    """Takes bytes piece by piece; pieces cut at multiples of 8 give what the whole gives."""

    def __init__(self) -> None:
        self._words = self._plain = self._weighted = 0

    def add(self, data: torch.Tensor) -> None:
        """uint8 [N], N a multiple of 8, on any device: it is summed where it lies."""
        words = data.view(torch.int64)
        size = _CHUNK.get(data.device.type, _CHUNK_ELSEWHERE)
        odd = torch.arange(1, 2 * min(size, len(words)) + 1, 2, device=data.device)
        for start in range(0, len(words), size):
            part = words[start : start + size]
            here = int(part.sum())
            self._plain += here
            self._weighted += int((part * odd[: len(part)]).sum()) + 2 * (self._words + start) * here
        self._words += len(words)

    def hex(self) -> str:
        """32 digits."""
        return f"{self._plain % 2**64:016x}{self._weighted % 2**64:016x}"


def checksum(data: torch.Tensor) -> str:
    """Of uint8 [N], N a multiple of 8."""
    total = Checksum()
    total.add(data)
    return total.hex()


def file_checksum(path: Path) -> str:
    """Of a file's bytes, filled up to a multiple of 8 with zeros. Raises OSError."""
    total = Checksum()
    buffer = bytearray(_READ)
    with path.open("rb", buffering=0) as file:
        while count := _fill(file, buffer):
            used = -(-count // 8) * 8
            buffer[count:used] = bytes(used - count)
            total.add(torch.frombuffer(buffer, dtype=torch.uint8, count=used))
    return total.hex()


def _fill(file: FileIO, buffer: bytearray) -> int:
    """Read until the buffer is full or the file ends: a short read may come before either."""
    view, count = memoryview(buffer), 0
    while count < len(buffer) and (got := file.readinto(view[count:])):
        count += got
    return count
