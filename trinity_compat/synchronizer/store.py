"""Weight versions as the buffer announces them, and the files that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.job.run_spec import SyncSpec
from trinity_compat.synchronizer.transports.files import WeightFile, prune, read_file, write_file

__all__ = ["as_version", "prune", "read_version", "recycles", "write_version"]


def write_version(
    directory: str | Path,
    version: int,
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    method: str = "memory",
    recycle: bool = False,
) -> WeightVersion:
    """Write ``tensors`` as ``version``; publish what this returns with ``buffer.publish_version``."""
    return as_version(version, write_file(directory, version, tensors, recycle=recycle), method)


def as_version(version: int, file: WeightFile, method: str) -> WeightVersion:
    """Return the buffer's record of a written file."""
    return WeightVersion(version, file.path, file.digest, file.nbytes, method)


def recycles(sync: SyncSpec) -> bool:
    """Return whether files that are no longer needed are overwritten: in memory, with all on one node."""
    return sync.method == "memory"


def read_version(version: WeightVersion) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield copies of a version's (name, tensor). Raises WeightsDamaged when files and digest disagree."""
    return read_file(WeightFile(version.path, version.digest, version.nbytes))
