"""A user's request to end a run: words in ``log/stop`` of the job, of which the last one counts.

``step`` ends it after the step that is being trained, with a checkpoint: the trainer does that itself, at
once where it waits for answers. The command asks for it at SIGTERM, and ``echo step > JOB/log/stop`` does.
``now`` is noted beside a signal, so that nobody takes the end for a failure. The next start removes the file.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import BinaryIO, Literal

from trinity_compat.common import regular_files

StopMoment = Literal["step", "now"]
AFTER_STEP: StopMoment = "step"
NOW: StopMoment = "now"
_TAIL = 64  # bytes
_ASKED_S = 1.0  # for the supervisor's next look at its signals


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


def note_end(job: str | Path) -> None:
    """Note that the processes are about to be ended, so that none waits for its step."""
    with contextlib.suppress(OSError), regular_files.appended(path_of(job)) as file:
        file.write(f"{NOW}\n".encode())


def outlasts_sigterm(job: str | Path) -> bool:
    """Return whether a side that got SIGTERM goes on to the end of its step.

    Slurm signals all processes of a step: the supervisor asks for the checkpoint when it got the same one.
    """
    from trinity_compat.common.parent_watch import SUPERVISOR  # POSIX only

    if SUPERVISOR not in os.environ:
        return False
    until = time.monotonic() + _ASKED_S
    while (asked := read(job)) is None and time.monotonic() < until:
        time.sleep(0.05)
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
