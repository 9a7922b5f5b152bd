"""Weight versions as the buffer announces them, and the file each one lies in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.synchronizer.files import WeightFile, prune, read_file, write_file

__all__ = ["as_version", "prune", "read_version", "write_version"]


def write_version(
    directory: str | Path,
    version: int,
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    method: str = "memory",
) -> WeightVersion:
    """Write ``tensors`` as ``version``; publish what this returns with ``buffer.publish_version``."""
    return as_version(version, write_file(directory, version, tensors), method)


def as_version(version: int, file: WeightFile, method: str) -> WeightVersion:
    """What the buffer keeps of a written file."""
    return WeightVersion(version, file.path, file.digest, file.nbytes, method)


def read_version(version: WeightVersion) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) pairs of a published version; WeightsDamaged when file and digest disagree."""
    return read_file(WeightFile(version.path, version.digest, version.nbytes))
