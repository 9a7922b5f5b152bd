"""Parts of a version: safetensors files, hashed while they are written and mapped when they are read.

Most of the time is the first touch of each 4 KiB page, not copying, so both sides reuse pages: a part may be
written over a file that is no longer needed, and processes keep their mappings of that file. ``flock`` shows
whether it is being read.
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

PART_BYTES = 64 << 20  # a larger tensor is one part
_PIECE = 1 << 20  # bytes that are hashed and written while they are in the cache
# MADV_POPULATE_*, Linux 5.14: one call instead of page faults; a disk error is OSError, not SIGBUS
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
    """A tensor in a header; its bytes from data_offsets[0] to data_offsets[1], after the header."""

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
    """Group ``tensors`` in their order, up to ``limit`` bytes by ``size`` together; at least one."""
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
    """Writes parts, and keeps overwritten files mapped. ``write`` may run in several threads."""

    def __init__(self) -> None:
        self._mapped: dict[Identity, MappedFile] = {}

    def write(self, path: Path, tensors: Iterable[Named], spare: Path | None = None) -> WeightPart:
        """Write ``tensors`` (any shape, on any device) to ``path``.

        The file ``spare`` is overwritten if it has the same size and is not being read. Raises OSError,
        KeyError for a dtype that safetensors lacks.
        """
        ordered = sorted(
            tensors, key=lambda named: -named[1].element_size()
        )  # each at a multiple of its size
        header = _header(ordered)
        pieces = itertools.chain(
            [torch.frombuffer(header, dtype=torch.uint8)], *(_pieces(t) for _, t in ordered)
        )
        nbytes = len(header) + sum(tensor.nbytes for _, tensor in ordered)
        old = self._take_spare(spare, path, nbytes) if spare else None
        if old is None:
            # Write a new file without mapping, so that its pages are not zeroed first.
            digest = xxhash.xxh3_128()
            with path.open("wb", buffering=0) as file:
                for piece in pieces:
                    chunk = memoryview(piece.cpu().numpy())
                    digest.update(chunk)
                    while chunk:
                        chunk = chunk[file.write(chunk) :]
            return WeightPart(path.name, nbytes, digest.hexdigest())
        try:
            return WeightPart(path.name, nbytes, old.fill(pieces))
        finally:
            old.unlock()

    def _take_spare(self, spare: Path, path: Path, nbytes: int) -> MappedFile | None:
        """Lock the file ``spare`` and rename it."""
        try:
            file = mapped_from(self._mapped, spare, _writable)
            if file.nbytes != nbytes:
                return None
            file.lock(fcntl.LOCK_EX)
        except (FileNotFoundError, BlockingIOError):
            return None
        spare.rename(path)
        return file

    def forget(self) -> None:
        """Close deleted files."""
        self._mapped = {identity: file for identity, file in self._mapped.items() if not file.gone()}


def _header(tensors: Iterable[Named]) -> bytearray:
    """Return the length (8 bytes) and JSON, padded so that the tensors begin at a multiple of 8."""
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
    """A file in this process's memory; its content is valid while it is locked."""

    def __init__(self, path: Path, mode: Literal["rb", "r+b"], access: int, populate: int) -> None:
        """Map a file with mmap's ``access``, and give madvise the advice ``populate``, which loads all pages.

        Raises OSError, also for disk errors, and ValueError for an empty file.
        """
        self._file = path.open(mode, buffering=0)
        self._map = mmap.mmap(self._file.fileno(), 0, access=access)
        try:
            self._map.madvise(populate)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):  # of an older kernel
                raise

    @property
    def nbytes(self) -> int:
        """Size of the mapping."""
        return len(self._map)

    def gone(self) -> bool:
        """Return whether the file is deleted: its space is freed with its last mapping."""
        return os.fstat(self._file.fileno()).st_nlink == 0

    def lock(self, how: int) -> None:
        """Lock it by flock's ``how``. Raises BlockingIOError where another process reads or writes it."""
        fcntl.flock(self._file, how | fcntl.LOCK_NB)

    def unlock(self) -> None:
        """Unlock it."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def fill(self, pieces: Iterable[torch.Tensor]) -> str:
        """Write ``pieces`` (uint8, as many bytes as it has) into it; return the digest."""
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
    """A part to be read."""

    def __init__(self, path: Path) -> None:
        # A private mapping: a loader that changes a tensor in place does not change the file.
        super().__init__(path, "rb", mmap.ACCESS_COPY, _POPULATE_READ)

    def digest(self) -> str:
        """Return the digest; see ``WeightPart``."""
        return xxhash.xxh3_128(self._map).hexdigest()

    def tensors(self) -> list[Named]:
        """Return its tensors, without copies. Call it after ``digest``."""
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
    """Return the file at ``path`` from ``known``, by inode; else map it and add it."""
    status = path.stat()
    identity = status.st_dev, status.st_ino
    if identity not in known or known[identity].nbytes != status.st_size:
        known[identity] = mapped(path)
    return known[identity]
