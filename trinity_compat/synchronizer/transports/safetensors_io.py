"""One part of a version: a safetensors file, hashed while it is written and mapped when it is read.

What takes the time is not the copying but each 4 KiB page's first touch, so that both sides touch few new
ones: a part may be written over a file that nobody needs any more, and whoever has that file mapped keeps the
mapping. ``flock`` says whether anybody reads it.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, TypeVar

import torch
import xxhash

PART_BYTES = 64 << 20  # a larger tensor has a part of its own
_PIECE = 1 << 20  # bytes that are hashed and written while they are in the cache
# MADV_POPULATE_*, Linux 5.14: one call instead of a fault a page; an error of the disk is OSError, not SIGBUS
_POPULATE_READ, _POPULATE_WRITE = 22, 23
# The names are the format's (https://github.com/huggingface/safetensors, safetensors/src/tensor.rs, Dtype).
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}

Named = tuple[str, torch.Tensor]
Identity = tuple[int, int]
_M = TypeVar("_M", bound="MappedFile")


class _Row(TypedDict):
    """A tensor in a header; its bytes from data_offsets[0] to data_offsets[1], counted behind the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class WeightPart:
    """A file ``name`` of a version's folder; ``digest``: xxh3_128 of its ``nbytes`` bytes, 32 hex digits."""

    name: str
    nbytes: int
    digest: str


def split(
    tensors: Iterable[Named], limit: int, size: Callable[[torch.Tensor], int] = lambda tensor: tensor.nbytes
) -> Iterator[list[Named]]:
    """``tensors`` in their order, as many together as have ``limit`` bytes by ``size``; at least one."""
    waiting: list[Named] = []
    held = 0
    for name, tensor in tensors:
        if waiting and held + size(tensor) > limit:
            yield waiting
            waiting, held = [], 0
        waiting.append((name, tensor))
        held += size(tensor)
    if waiting:
        yield waiting


class PartWriter:
    """Writes parts, and keeps those mapped that it has written over. ``write`` may run in several threads."""

    def __init__(self) -> None:
        self._mapped: dict[Identity, MappedFile] = {}

    def write(self, path: Path, tensors: Iterable[Named], spare: Path | None = None) -> WeightPart:
        """Write ``tensors`` (any shape, on any device) to ``path``, over the file ``spare`` if that is as big
        and nobody reads it. Raises OSError, KeyError for a dtype that safetensors has no name for."""
        ordered = sorted(
            tensors, key=lambda named: -named[1].element_size()
        )  # each at a multiple of its size
        header = _header(ordered)
        pieces = itertools.chain(
            [torch.frombuffer(header, dtype=torch.uint8)], *(_pieces(t) for _, t in ordered)
        )
        nbytes = len(header) + sum(tensor.nbytes for _, tensor in ordered)
        old = self._taken(spare, path, nbytes) if spare else None
        if old is None:
            return WeightPart(path.name, nbytes, _write(path, pieces))
        try:
            return WeightPart(path.name, nbytes, old.fill(pieces))
        finally:
            old.unlock()

    def _taken(self, spare: Path, path: Path, nbytes: int) -> MappedFile | None:
        """The file ``spare``, locked and under its new name."""
        try:
            found = mapped_from(self._mapped, spare, _writable)
            if found.nbytes != nbytes:
                return None
            found.lock(fcntl.LOCK_EX)
        except (FileNotFoundError, BlockingIOError):
            return None
        spare.rename(path)
        return found

    def forget(self) -> None:
        """Let go of files that were deleted."""
        self._mapped = {identity: file for identity, file in self._mapped.items() if not file.gone()}


def _write(path: Path, pieces: Iterable[torch.Tensor]) -> str:
    """A new file, not mapped: its pages need no zeroing then. Returns the digest."""
    digest = xxhash.xxh3_128()
    with path.open("wb", buffering=0) as file:
        for piece in pieces:
            chunk = memoryview(piece.cpu().numpy())
            digest.update(chunk)
            while chunk:
                chunk = chunk[file.write(chunk) :]
    return digest.hexdigest()


def _header(tensors: Iterable[Named]) -> bytearray:
    """Length (8 bytes) and JSON, filled up with spaces so that the tensors begin at a multiple of 8."""
    rows, begin = dict[str, _Row](), 0
    for name, tensor in tensors:
        end = begin + tensor.nbytes
        shape = list(tensor.shape)
        rows[name] = {"dtype": _NAMES[tensor.dtype], "shape": shape, "data_offsets": (begin, end)}
        begin = end
    text = json.dumps(rows, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return bytearray(len(text).to_bytes(8, "little") + text)


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    yield from flat.split(_PIECE)


class MappedFile:
    """A file in this process's memory. What it holds is good while it is locked."""

    def __init__(self, path: Path, mode: Literal["rb", "r+b"], access: int, populate: int) -> None:
        """``access``: mmap's; ``populate``: the advice that brings all pages in.

        Raises OSError, also when the disk does, and ValueError for an empty file.
        """
        self._file = path.open(mode, buffering=0)
        self._map = mmap.mmap(self._file.fileno(), 0, access=access)
        try:
            self._map.madvise(populate)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):  # of a kernel that does not know it
                raise

    @property
    def nbytes(self) -> int:
        """Of the mapping."""
        return len(self._map)

    def gone(self) -> bool:
        """Whether the file has no name any more: what it takes is free once nobody maps it."""
        return os.fstat(self._file.fileno()).st_nlink == 0

    def lock(self, how: int) -> None:
        """``how``: flock's. Raises BlockingIOError where others read it, or write into it."""
        fcntl.flock(self._file, how | fcntl.LOCK_NB)

    def unlock(self) -> None:
        """Somebody may write into it."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def fill(self, pieces: Iterable[torch.Tensor]) -> str:
        """Write ``pieces`` (uint8, as many bytes as it has) into it; returns the digest."""
        digest, start = xxhash.xxh3_128(), 0
        held, view = torch.frombuffer(self._map, dtype=torch.uint8), memoryview(self._map)
        for piece in pieces:
            held[start : start + len(piece)].copy_(piece)
            digest.update(view[start : start + len(piece)])
            start += len(piece)
        return digest.hexdigest()


def _writable(path: Path) -> MappedFile:
    return MappedFile(path, "r+b", mmap.ACCESS_WRITE, _POPULATE_WRITE)


class MappedPart(MappedFile):
    """To be read."""

    def __init__(self, path: Path) -> None:
        # A private mapping: a loader that changes a tensor in place changes nobody's file.
        super().__init__(path, "rb", mmap.ACCESS_COPY, _POPULATE_READ)

    def digest(self) -> str:
        """As ``Part``'s."""
        return xxhash.xxh3_128(self._map).hexdigest()

    def tensors(self) -> list[Named]:
        """What it holds, in place. Call it after ``digest``."""
        start = 8 + int.from_bytes(self._map[:8], "little")
        rows: dict[str, _Row] = json.loads(self._map[8:start])
        return [(name, _tensor(self._map, start, row)) for name, row in rows.items()]


def _tensor(held: mmap.mmap, start: int, row: _Row) -> torch.Tensor:
    dtype, (begin, end) = _TYPES[row["dtype"]], row["data_offsets"]
    count = (end - begin) // dtype.itemsize
    if not count:
        return torch.empty(row["shape"], dtype=dtype)
    return torch.frombuffer(held, dtype=dtype, count=count, offset=start + begin).view(row["shape"])


def mapped_from(known: dict[Identity, _M], path: Path, mapped: Callable[[Path], _M]) -> _M:
    """The file at ``path``: as ``known``, under whatever name, or ``mapped`` and known from now on."""
    found = path.stat()
    identity = found.st_dev, found.st_ino
    if identity not in known or known[identity].nbytes != found.st_size:
        known[identity] = mapped(path)
    return known[identity]
