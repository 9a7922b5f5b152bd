"""The explorer's side: wait for the version that the style asks for, and never go on without it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.model import WeightVersion
from trinity_compat.errors import RunError
from trinity_compat.spec import SyncSpec
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
    """Whether a version can still be loaded, as far as its place tells: files are deleted in time."""
    return version.method in ("nccl", "model path") or Path(version.path).exists()


def wait_for_version(
    buffer: Buffer,
    sync: SyncSpec,
    step: int,
    timeout_s: float | None = None,
    *,
    poll_s: float = 0.02,
    check: Callable[[], None] = lambda: None,
) -> WeightVersion:
    """Block until ``find_version`` has one for explorer step ``step``.

    ``check`` is called between looks; what it raises ends the wait. Raises SyncTimeout after
    ``timeout_s`` (default: sync.timeout_s).
    """
    limit = sync.timeout_s if timeout_s is None else timeout_s
    until = time.monotonic() + limit
    while (found := find_version(buffer, sync, step)) is None:
        if time.monotonic() > until:
            raise _timeout(buffer, sync, step, limit)
        check()
        time.sleep(poll_s)
    return found


def _timeout(buffer: Buffer, sync: SyncSpec, step: int, limit: float) -> SyncTimeout:
    newest = buffer.latest_version()
    have = f"the newest published is {newest.version}" if newest else "none was published"
    wanted = required_version(sync, step)
    what = "any version" if wanted is None else f"version {wanted}"
    return SyncTimeout(
        f"explorer step {step} waited {limit:g} s for {what} of the weights ({have})",
        hint="see log/trainer.log for what holds the trainer; synchronizer.sync_timeout sets the limit",
    )
