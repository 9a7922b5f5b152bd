"""One safetensors file per weight version: written beside, renamed, checked by its digest when read.

Knows nothing of the database; ``store`` adds that. The directory is shared memory on one node, or any
file system that all nodes see.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from trinity_compat.errors import RunError
from trinity_compat.faults import point
from trinity_compat.synchronizer.checksum import file_checksum

_NAME = re.compile(r"v(\d+)\.safetensors")


class WeightsDamaged(RuntimeError):
    """A version's file is missing or does not hold what was published."""


@dataclass(frozen=True, slots=True)
class WeightFile:
    """``digest``: ``file_checksum`` of it; ``nbytes``: its size."""

    path: str
    digest: str
    nbytes: int


def version_path(directory: str | Path, version: int) -> Path:
    """Where ``version`` lies."""
    return Path(directory) / f"v{version:08d}.safetensors"


def write_file(
    directory: str | Path, version: int, tensors: Iterable[tuple[str, torch.Tensor]]
) -> WeightFile:
    """Write all ``tensors`` (any shape; floats as they are) as one file; returns where and its digest.

    A crash leaves the old file or none, never a half one. OSError when the disk is full; RunError for a
    folder in shared memory that is not this user's alone.
    """
    path = version_path(directory, version)
    make_private(path.parent)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        save_file(_separate(tensors), part)
        written = WeightFile(str(path), file_checksum(part), part.stat().st_size)
        point("inside weights")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    point("after weights")
    return written


def make_private(folder: Path) -> None:
    """Make ``folder`` for this user alone. Where everybody may write, as in /dev/shm, its name can be told
    beforehand: raises RunError for one there that somebody else made, or may write into."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not folder.parent.stat().st_mode & stat.S_IWOTH:
        return
    found = folder.lstat()
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not ours or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RunError(
            f"{folder} belongs to somebody else, or others may write there: no weights are put into it",
            hint="remove it, or write synchronizer.sync_method=checkpoint",
        )
    folder.chmod(0o700)


def _separate(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """safetensors refuses two names on one storage (tied embeddings): the later ones get a copy."""
    out: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors:
        plain = tensor.detach().contiguous()
        place = plain.untyped_storage().data_ptr()
        out[name] = plain.clone() if place in seen or _is_view(plain) else plain
        seen.add(place)
    return out


def _is_view(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()


def check_file(file: WeightFile) -> None:
    """Raise WeightsDamaged unless the file is there, with the published size and digest."""
    path = Path(file.path)
    try:
        nbytes, digest = path.stat().st_size, file_checksum(path)
    except OSError as error:
        raise WeightsDamaged(f"weights {path} can't be read: {error.strerror}") from error
    if (nbytes, digest) != (file.nbytes, file.digest):
        raise WeightsDamaged(f"weights {path} are not what was published ({nbytes} bytes, checksum {digest})")


def read_file(file: WeightFile) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) pairs in the file's order, after ``check_file``; one tensor in memory at a time."""
    check_file(file)
    try:
        with safe_open(file.path, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118 (a safetensors handle is no mapping)
                yield name, handle.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise WeightsDamaged(f"weights {file.path} can't be read: {error}") from error


def versions_in(directory: str | Path) -> dict[int, Path]:
    """Versions that lie in ``directory``, in order."""
    found = {}
    for path in Path(directory).glob("v*.safetensors"):
        if match := _NAME.fullmatch(path.name):
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def prune(directory: str | Path, *, before: int) -> list[int]:
    """Delete versions below ``before``; returns them. A reader that has one open keeps it. What a writer that
    was killed had begun goes too: call it where nobody writes."""
    gone = [version for version in versions_in(directory) if version < before]
    for version in gone:
        version_path(directory, version).unlink(missing_ok=True)
    for begun in Path(directory).glob("v*.safetensors.*.part"):
        begun.unlink(missing_ok=True)
    return gone
