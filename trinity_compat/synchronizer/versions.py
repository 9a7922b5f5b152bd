"""Weight versions as the buffer announces them: their files, and the explorer's wait for one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.buffer.store import Buffer
from trinity_compat.common.errors import RunError
from trinity_compat.job.run_spec import SyncSpec
from trinity_compat.synchronizer.policy import required_version
from trinity_compat.synchronizer.transports.files import WeightFile, read_file, write_file


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


class SyncTimeout(RunError):
    """No version of the weights came in time; with older ones the batch would be off-policy unnoticed."""


def find_version(buffer: Buffer, sync: SyncSpec, step: int) -> WeightVersion | None:
    """Return the version that explorer step ``step`` may use now, or None.

    fixed: the required version; after a resume whose checkpoint is newer than that, and with its file
    gone, the oldest one that follows. Other styles: the newest. A version without its file does not count:
    an ended run's files in memory are gone with it, and its rerun publishes the version again.
    """
    newest, required = buffer.latest_version(), required_version(sync, step)
    if newest is None or not is_available(newest):
        return None
    if required is None:
        return newest
    for version in range(required, newest.version):
        candidate = buffer.get_version(version)
        if candidate is not None and is_available(candidate):
            return candidate
    return newest if newest.version >= required else None


def unreachable_version(buffer: Buffer) -> WeightVersion | None:
    """Return the newest version if its file is missing here although the trainer published it and waits."""
    newest = buffer.latest_version()
    if newest is None or newest.method == "device" or is_available(newest):
        return None
    trainer_waits = any(
        p.role == "trainer" and p.state == "waiting" and p.age_s < 5.0 for p in buffer.participants()
    )
    return newest if trainer_waits else None


def is_available(version: WeightVersion) -> bool:
    """Return whether a version can still be loaded: older ones are deleted.

    Earlier releases wrote single files, which do not count: a resumed job publishes its present version
    first, in a folder.
    """
    if version.method == "device":  # the engines that took it over hold the only copy
        return False
    return version.method in ("nccl", "model path") or Path(version.path).is_dir()


def timed_out(buffer: Buffer, sync: SyncSpec, step: int, waited_s: float) -> SyncTimeout:
    """Return the error for explorer step ``step``: the version that it waited for, and the newest one."""
    newest = buffer.latest_version()
    have = f"the newest published is {newest.version}" if newest else "none was published"
    wanted = required_version(sync, step)
    what = "any version" if wanted is None else f"version {wanted}"
    return SyncTimeout(
        f"explorer step {step} waited {waited_s:.0f} s for {what} of the weights ({have})",
        hint="log/trainer.log says what delays the trainer; synchronizer.sync_timeout sets the limit",
    )
