"""A user's request to end a run: words in ``log/stop`` of the job, of which the last one counts.

``step`` ends it after the step that is being trained, with a checkpoint: the trainer does that itself, at
once where it waits for answers. The command asks for it at SIGTERM, and ``echo step > JOB/log/stop`` does.
``now`` is noted beside a signal, so that nobody takes the end for a failure. The next start removes the file.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import BinaryIO, Literal

from trinity_compat.common import regular_files

StopMoment = Literal["step", "now"]
AFTER_STEP: StopMoment = "step"
NOW: StopMoment = "now"
_TAIL = 64  # bytes


class StoppedAfterStep(SystemExit):
    """The end of a trainer that was asked for it, after its step and with a checkpoint."""


class StopBeforeStep(Exception):
    """Raised while a trainer waits for the answers of a step, where the user asked for the end."""


def path_of(job: str | Path) -> Path:
    """Return the file of a job's request."""
    return Path(job) / "log" / "stop"


def ask(job: str | Path) -> bool:
    """Ask for the end after the step; False where it is to come at once, or the file cannot be written."""
    if (asked := read(job)) is None:
        with contextlib.suppress(OSError), regular_files.appended(path_of(job)) as file:
            file.write(f"{AFTER_STEP}\n".encode())
        asked = read(job)
    return asked == AFTER_STEP


def of_file(file: BinaryIO) -> StopMoment | None:
    """Return the request in an open file, None where there is none."""
    file.seek(max(0, file.seek(0, 2) - _TAIL))
    last = file.read(_TAIL).split()[-1:]
    return {b"step": AFTER_STEP, b"now": NOW}.get(b"".join(last))


def read(job: str | Path) -> StopMoment | None:
    """Return the request in the user's own job, None where there is none."""
    try:
        with regular_files.followed(path_of(job)) as file:
            return of_file(file)
    except OSError:
        return None
