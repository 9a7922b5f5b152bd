"""A run's last start as its launcher recorded it: phases with their times, and why the run ended.

The record lies in the job, which may be another user's: it is read as text and numbers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from trinity_compat.buffer.model import Participant
from trinity_compat.common.redaction import shown
from trinity_compat.job import stop_request
from trinity_compat.job.stop_request import StopMoment
from trinity_compat.run.job_dir import start_record
from trinity_compat.run.job_dir.snapshot import age, label
from trinity_compat.run.job_dir.start_record import RecordedStart
from trinity_compat.run.job_dir.status import is_live
from trinity_compat.studio import job_files, logs
from trinity_compat.studio.jobs import Job

_STARTING_S = 120.0  # without a heartbeat since the last phase began
_ENDING_S = 60.0  # of the launcher, after its sides
_MOST = 16  # records
_NOBODY = (
    "The run's processes are gone, and none of them said why: often the machine ran out of memory, or was"
    " restarted."
)
_COPIED = "This is a copy that was made while the run was at work: how the run ended is not in it."


def starts_of(job: Job) -> list[RecordedStart]:
    """Return the last start of each command of the run; [] for a job that recorded none."""
    folder = job.dir.root / "log"
    try:
        names = [name for name in job_files.names(folder) if start_record.NAME.fullmatch(name)]
    except OSError:
        return []
    found = []
    for name in names[:_MOST]:
        side = name.removeprefix("phases").removesuffix(".json").lstrip("-")
        with contextlib.suppress(OSError, ValueError):
            found.append(RecordedStart.of_text(job_files.text(folder / name), side))
    return found


def asked_to_stop(job: Job) -> StopMoment | None:
    """Return when the user asked the run to end, None if nobody has since its last start."""
    try:
        with job_files.opened(stop_request.path_of(job.dir.root)) as file:
            return stop_request.of_file(file)
    except OSError:
        return None


def state_of(
    participants: Sequence[Participant], starts: Sequence[RecordedStart], asked: StopMoment | None = None
) -> str:
    """Return the job's state, a key of MEANS."""
    ends = [start.end for start in starts if start.end]
    ended = bool(starts) and len(ends) == len(starts)
    if is_live(participants) and not ended:
        return "stopping" if asked else "running"
    states = {one.state for one in participants}
    if asked and starts and not ended and min((one.age_s for one in participants), default=0.0) < _ENDING_S:
        return "stopping"  # the sides have ended, their launcher has not
    if ended and any(end.code for end in ends) and not any(end.failure for end in ends):
        return "stopped"  # by a signal, of which a side in its first steps may say that it failed
    if "failed" in states or any(end.failure for end in ends):
        return "failed"
    if any(one.state == "done" for one in participants if one.role == "trainer"):
        return "done"  # also where the explorer was stopped since
    for word in ("stopped", "done"):
        if word in states:
            return word
    if ended:
        return "stopped" if any(end.code for end in ends) else "done"
    if states:
        return "stopped" if asked else "lost"
    began = max((phase.began or 0.0 for start in starts for phase in start.phases), default=None)
    if began is None:
        return "new"
    return "starting" if time.time() - began < _STARTING_S else "lost"


def as_page(starts: Sequence[RecordedStart]) -> list[dict[str, object]]:
    """Return the starts for JSON: each phase with its name, its time in words, and done, now or later."""
    now = time.time()
    found: list[dict[str, object]] = []
    for start in starts:
        phases, until = [], 0.0
        for phase in start.phases:
            state = "done" if phase.ended is not None else "later"
            if phase.began is not None and phase.ended is None and start.end is None:
                state = "now"
            took = "" if state == "later" else age(phase.took_s(now))
            beside = "meanwhile " if phase.began is not None and phase.began < until - 1 else ""
            until = max(until, phase.ended or (now if state == "now" else 0.0))
            phases.append([beside + shown(phase.name), f"for {took}" if state == "now" else took, state])
        found.append({"side": start.side, "phases": phases})
    return found


def reason_of(
    job: Job, state: str, participants: Sequence[Participant], starts: Sequence[RecordedStart]
) -> str:
    """Return why the run failed in one sentence, '' for one that did not fail."""
    if state == "lost":
        return _COPIED if job.copied_from else _NOBODY
    if state != "failed":
        return ""
    for start in starts:
        if start.end and start.end.failure:
            return shown(start.end.failure)
    failed = [one for one in participants if one.state == "failed"]
    told = [f"{label(one)}: {one.detail['reason']}" for one in failed if one.detail.get("reason")]
    return shown("; ".join(told)) or f"{' and '.join(map(label, failed))} failed without a reason."


def failure_of(
    job: Job, state: str, participants: Sequence[Participant], starts: Sequence[RecordedStart]
) -> dict[str, str] | None:
    """Return for the page of a run that failed the log that tells more, and its last lines."""
    if not reason_of(job, state, participants, starts):
        return None
    blamed = [Path(start.end.log).stem for start in starts if start.end and start.end.log]
    blamed += [label(one) for one in participants if one.state == "failed"]
    known = logs.names(job.dir)
    log = next((name for name in (*blamed, "launcher", "trainer") if name in known), "")
    return {"log": log, "lines": logs.last_lines(job.dir.log(log)) if log else ""}
