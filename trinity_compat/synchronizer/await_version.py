"""The explorer's side: the version that the style asks for, and the error that ends a wait for it."""

from __future__ import annotations

from pathlib import Path

from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.model import WeightVersion
from trinity_compat.common.errors import RunError
from trinity_compat.job.run_spec import SyncSpec
from trinity_compat.synchronizer.policy import required_version


class SyncTimeout(RunError):
    """No version of the weights came in time. Generating on with older ones would be off-policy unseen."""


def find_version(buffer: Buffer, sync: SyncSpec, step: int) -> WeightVersion | None:
    """What explorer step ``step`` may use now, or None.

    fixed: the required version; after a resume whose checkpoint is newer than that, and with its file
    gone, the oldest one that follows. Other styles: the newest. A version without its file is none: what
    an ended run left in memory is gone with it, and its rerun publishes it again.
    """
    newest, required = buffer.latest_version(), required_version(sync, step)
    if newest is None or not is_there(newest):
        return None
    if required is None:
        return newest
    for version in range(required, newest.version):
        found = buffer.get_version(version)
        if found is not None and is_there(found):
            return found
    return newest if newest.version >= required else None


def misplaced(buffer: Buffer) -> WeightVersion | None:
    """The newest version, if its file is not here although the trainer has published it and waits."""
    newest = buffer.latest_version()
    if newest is None or is_there(newest):
        return None
    waits = any(p.role == "trainer" and p.state == "waiting" and p.age_s < 5.0 for p in buffer.participants())
    return newest if waits else None


def is_there(version: WeightVersion) -> bool:
    """Whether a version can still be loaded, as far as its place tells: they are deleted in time.

    A file is what earlier releases wrote; a job that goes on publishes its present version first, in a
    folder.
    """
    return version.method in ("nccl", "model path") or Path(version.path).is_dir()


def timed_out(buffer: Buffer, sync: SyncSpec, step: int, waited_s: float) -> SyncTimeout:
    """The error for explorer step ``step``: what it waited for, and what is there."""
    newest = buffer.latest_version()
    have = f"the newest published is {newest.version}" if newest else "none was published"
    wanted = required_version(sync, step)
    what = "any version" if wanted is None else f"version {wanted}"
    return SyncTimeout(
        f"explorer step {step} waited {waited_s:.0f} s for {what} of the weights ({have})",
        hint="log/trainer.log says what holds the trainer; synchronizer.sync_timeout sets the limit",
    )
