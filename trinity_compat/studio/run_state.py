"""The current state of a job, in the words and figures of a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trinity_compat.buffer.model import Participant
from trinity_compat.common.errors import UserError
from trinity_compat.common.redaction import shown
from trinity_compat.job import stop_request
from trinity_compat.job.liveness import ENDED
from trinity_compat.run.job_dir import alerts
from trinity_compat.run.job_dir.alerts import Alert
from trinity_compat.run.job_dir.snapshot import Snapshot, StepFigures, age, label, snapshot_of, training_rows
from trinity_compat.studio import health, job_files, starts, step_time
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.series import Metrics

GOES_ON = ("running", "stopping", "starting")  # states
_SPARK = 120  # steps
_AT_WORK = ("running", "stopping")
_PACE = 60  # newest rows from which the live figures are computed
MEANS = {
    "running": "sends heartbeats",
    "stopping": "was asked to stop, and is at work until then",
    "done": "has trained all its steps",
    "failed": "explorer or trainer failed",
    "stopped": "was stopped; resuming continues from the last checkpoint",
    "lost": "was running and has sent no heartbeat for 30 s",
    "starting": "its launcher is at work, and no process has sent a heartbeat yet",
    "new": "has not started yet",
    "unreadable": "its files cannot be read",
}
_STOPPING = {
    stop_request.AFTER_STEP: "It ends after the step that is being trained, with a checkpoint of that step.",
    stop_request.NOW: "It was told to end at once; its processes have ten seconds.",
}


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A row of the runs page. ``problem``: why its figures are missing; ``failure``: why it failed."""

    name: str
    state: str
    step: int = 0
    total: int | None = None
    reward: float | None = None
    spark: tuple[tuple[int, float], ...] = ()
    lag: float | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    alerts: tuple[Alert, ...] = ()
    problem: str = ""
    failure: str = ""
    what: str = ""  # it trains, in a line
    elapsed: str = ""
    left: str = ""

    @property
    def verdict(self) -> health.Verdict:
        """The verdict on the run, whose failure has a place of its own."""
        return health.verdict(self.state, self.step, self.alerts, "")


def without_figures(job: Job) -> str:
    """Return the state of a job that cannot be read."""
    database = job.dir.root / "buffer" / "experiences.db"
    try:
        job_files.status(database)
    except FileNotFoundError:
        return "new"
    except OSError:
        pass
    return "unreadable"


def summary_of(job: Job) -> RunSummary:
    """Read the row of a job. Raises what reading raises."""
    spec, buffer = job.spec, job.buffer()
    with job.database().at_once():
        snapshot = snapshot_of(buffer, spec, buffer.read_metrics("trainer", newest=_SPARK))
    participants, rows, begun = snapshot.participants, snapshot.rows, starts.starts_of(job)
    state = starts.state_of(participants, begun, starts.asked_to_stop(job))
    last = rows[-1] if rows else StepFigures(0)
    rewards = tuple((row.step, row.reward) for row in rows if row.reward is not None)
    return RunSummary(
        job.name,
        state,
        last.step,
        spec.total_steps,
        rewards[-1][1] if rewards else None,
        rewards,
        last.staleness,
        last.tokens_per_s,
        last.step_s,
        tuple(alerts.of_run(snapshot, rows, spec, running=state in _AT_WORK)),
        failure=starts.reason_of(job, state, participants, begun),
        what=" · ".join(text for _, text in health.facts(spec, job.dir.root)),
        elapsed=health.elapsed(begun),
        left=_left(snapshot, state),
    )


def spark_points(points: Sequence[tuple[int, float]], width: int = 120, height: int = 28) -> str:
    """Return the ``points`` attribute of an SVG polyline, '' for fewer than two points."""
    points = [point for point in points if math.isfinite(point[1])]
    if len(points) < 2:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    across = (width - 4) / ((max(xs) - min(xs)) or 1)
    up = (height - 6) / ((high - low) or 1)
    flat = height / 2 if high == low else 0.0
    at = ((2 + (x - xs[0]) * across, flat or height - 3 - (y - low) * up) for x, y in points)
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in at)


def now(job: Job, metrics: Metrics) -> dict[str, object]:
    """Return the live figures of one job for JSON; ``metrics`` must be up to date.

    Raises UserError or BufferError.
    """
    newest = metrics.newest("trainer", alerts.ROWS)
    snapshot = snapshot_of(job.buffer(), job.spec, newest[-_PACE:])
    last = snapshot.rows[-1] if snapshot.rows else StepFigures(0)
    begun = starts.starts_of(job)
    asked = starts.asked_to_stop(job)
    participants = snapshot.participants
    state = starts.state_of(participants, begun, asked)
    found = alerts.of_run(snapshot, training_rows(newest), job.spec, running=state in _AT_WORK)
    return {
        "state": state,
        "means": MEANS[state],
        "stopping": _STOPPING[asked] if asked and state == "stopping" else "",
        "step": snapshot.step,
        "total": snapshot.total,
        "updates": snapshot.step * snapshot.updates_per_step,
        "left": _left(snapshot, state),
        "reward": last.reward,
        "lag": last.staleness,
        "tokens": last.tokens_per_s,
        "step_s": last.step_s,
        "depth": dict(snapshot.depth),
        "version": snapshot.version,
        "checkpoint": job.latest_checkpoint,
        "history": snapshot.history,
        "elapsed": health.elapsed(begun),
        "verdict": health.verdict(
            state, snapshot.step, found, starts.reason_of(job, state, participants, begun)
        ),
        "waits": " ".join(
            filter(None, (step_time.bottleneck(metrics, job.spec.mode), step_time.device_use(metrics)))
        ),
        "alerts": [
            {"text": shown(alert.text), "metric": alert.metric, "since": alert.since} for alert in found
        ],
        "sides": [_participant(one) for one in participants],
        "starts": starts.as_page(begun),
        "failure": starts.failure_of(job, state, participants, begun),
    }


def _left(snapshot: Snapshot, state: str) -> str:
    return age(snapshot.left_s) if snapshot.left_s is not None and state == "running" else ""


def _participant(one: Participant) -> dict[str, object]:
    return {
        "name": label(one),
        "state": one.state,
        "seen": age(one.age_s),
        "where": f"pid {one.pid} on {one.host}",
        "reason": shown(str(one.detail.get("reason") or "")),
        "detail": ""
        if one.state in ENDED
        else shown(str(one.detail.get("note") or one.detail.get("doing") or "")),
    }


def evaluations(
    rows: Mapping[int, Mapping[str, float]],
) -> tuple[list[str], list[tuple[int, list[float | None]]]]:
    """Return (names of validation scores, (step, values) newest first) from the trainer's rows."""
    found = {
        step: {name: value for name, value in row.items() if name.startswith("val-")}
        for step, row in rows.items()
    }
    names = sorted(
        {name for row in found.values() for name in row}, key=lambda n: (not n.startswith("val-core"), n)
    )
    return names, [
        (step, [row.get(name) for name in names]) for step, row in sorted(found.items(), reverse=True) if row
    ]


def database_problem(job: Job) -> str:
    """Return why the job's database cannot be read, '' if it can."""
    try:
        job.database()
    except (UserError, OSError) as error:
        return shown(str(error))
    return ""
