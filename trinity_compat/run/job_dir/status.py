"""``status``: the state of a job, from its database alone."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from trinity_compat.buffer.model import Participant
from trinity_compat.buffer.reading import open_for_reading
from trinity_compat.buffer.store import Buffer
from trinity_compat.job import stop_request
from trinity_compat.job.liveness import ENDED, LOST_S
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.job_dir import alerts, resume_point, start_record
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.job_dir.progress import Progress
from trinity_compat.run.job_dir.snapshot import Snapshot, age, label, now_line, read_snapshot

_LOOK_S = 0.5
_STOPPING = {"step": "after this step, with a checkpoint", "now": "at once"}


def read_job(root: Path) -> tuple[JobDir, Snapshot]:
    """Read a job's state. Raises UserError for a folder that is not a job, or has no database yet."""
    job = JobDir.at(root)
    spec = job.load_started_spec()
    buffer = _opened(spec)
    try:
        return job, read_snapshot(buffer, spec)
    finally:
        buffer.close()


def _opened(spec: RunSpec) -> Buffer:
    """Open the buffer for reading; its other methods raise."""
    return Buffer(open_for_reading(spec.database_url))


def is_live(participants: Iterable[Participant]) -> bool:
    """Return whether a process of the job is alive, by its heartbeat."""
    return any(who.age_s <= LOST_S and who.state not in ENDED for who in participants)


def follow(job: JobDir, *, out: TextIO | None = None) -> None:
    """Show a running job as its own terminal does, until it ends or Ctrl-C."""
    spec = job.load_spec()
    with (
        contextlib.suppress(KeyboardInterrupt),
        Progress(spec, lambda: _opened(spec), out=out) as shown,
    ):
        while shown.last is None or is_live(shown.last.participants):
            shown.update()
            time.sleep(_LOOK_S)


def lines(job: JobDir, snapshot: Snapshot) -> Iterator[str]:
    """Yield the state as text."""
    spec = job.load_spec()
    checkpoint = resume_point.of(job.root, spec)
    yield f"job        {job.root}"
    yield f"history    {snapshot.history}" + (" (resumed)" if snapshot.history > 1 else "")
    yield now_line(snapshot)
    for who in snapshot.participants:
        lost = " (gone?)" if who.age_s > LOST_S and who.state not in ENDED else ""
        reason = f": {who.detail['reason']}" if who.detail.get("reason") else ""
        note = f": {who.detail['note']}" if who.detail.get("note") else ""
        seen = f"pid {who.pid} on {who.host}, seen {age(who.age_s)} ago{lost}"
        yield f"{label(who):10} {who.state}{reason}, {seen}{note}"
    depth = ", ".join(f"{count} {state}" for state, count in snapshot.depth.items())
    yield f"buffer     {depth} groups"
    yield "weights    " + ("none published" if snapshot.version is None else f"of step {snapshot.version}")
    yield f"checkpoint of step {checkpoint.step}" if checkpoint.step else "checkpoint none"
    if checkpoint.problem:
        yield f"problem    {checkpoint.problem}"
        yield f"  hint: {checkpoint.hint}"
    running = is_live(snapshot.participants)
    if running and (asked := stop_request.read(job.root)):
        yield f"stopping   {_STOPPING[asked]}"
    for start in start_record.read(job):
        phases = start_record.line(start, time.time(), live=start.end is None)
        yield "start      " + (f"{start.side}: {phases}" if start.side else phases)
        if start.end and start.end.failure and not running:
            yield f"failure    {start.end.failure}"
    for alert in alerts.of_run(snapshot, snapshot.rows, spec, running=running):
        yield f"alert      {alert.text}"
    for name, value in snapshot.validation.items():
        yield f"{name} {value:.4f}"


def record(job: JobDir, snapshot: Snapshot) -> dict[str, object]:
    """Return the state for programs; a figure that is not finite is null."""
    running = is_live(snapshot.participants)
    last = snapshot.rows[-1] if snapshot.rows else None
    spec = job.load_spec()
    found = alerts.of_run(snapshot, snapshot.rows, spec, running=running)
    checkpoint = resume_point.of(job.root, spec)
    return {
        "folder": str(job.root),
        "running": running,
        "history": snapshot.history,
        "step": snapshot.step,
        "total_steps": snapshot.total,
        "updates_per_step": snapshot.updates_per_step,
        "seconds_left": _finite(snapshot.left_s),
        "last_step": {
            name: _finite(None if last is None else getattr(last, name))
            for name in ("reward", "loss", "staleness", "step_s", "tokens_per_s")
        },
        "processes": [
            {
                "name": label(who),
                "role": who.role,
                "state": who.state,
                "reason": str(who.detail.get("reason") or "") or None,
                "note": str(who.detail.get("note") or "") or None,
                "pid": who.pid,
                "host": who.host,
                "seen_seconds_ago": who.age_s,
            }
            for who in snapshot.participants
        ],
        "groups": dict(snapshot.depth),
        "weights_version": snapshot.version,
        "checkpoint": checkpoint.step,
        "checkpoint_problem": checkpoint.problem or None,
        "starts": [asdict(start) for start in start_record.read(job)],
        "alerts": [asdict(alert) for alert in found],
        "validation": {name: _finite(value) for name, value in snapshot.validation.items()},
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
