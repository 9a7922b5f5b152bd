"""The pages of one run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from trinity_compat.audit.phrases import STATUS_MEANS
from trinity_compat.common.redaction import hidden, shown
from trinity_compat.report.build import sections
from trinity_compat.report.model import RunReport
from trinity_compat.report.page import as_part
from trinity_compat.studio import control, health, job_files, logs, run_state, step_time
from trinity_compat.studio.pages import as_json, job_of, page, reading, studio_of

# Shown first, those that the run has, before its evaluations' scores.
CURVES = (
    "critic/score/mean",
    "response_length/mean",
    "actor/entropy",
    "actor/grad_norm",
    "actor/ppo_kl",
    "perf/tokens_per_second",
    "training/model_version_lag/mean",
    "training/rollout_probs_diff_mean",
)
AXES = (
    ("step", "veRL's step: one train batch"),
    ("update", "optimizer updates"),
    ("time", "the steps' times, added up: pauses of a stopped run are not in it"),
    ("tokens", "tokens of the steps' batches, added up"),
)
_BUFFER = ("buffer/ready", "buffer/claimed", "buffer/stale", "buffer/void")
_LANE_STEPS = 60
_EVALUATIONS = 20
_RECORDS = ("trinity.yaml", "verl.yaml", "launch.json")


def run(request: Request) -> Response:
    """Show one run live."""
    job = job_of(request)
    if problem := run_state.database_problem(job):
        resumed = job.resumed.message(running=False) if job.resumed else ""
        return page(request, "unreadable.html", {"job": job, "problem": problem, "resumed": resumed})
    return _live(request)


@reading
def _live(request: Request) -> Response:
    job = job_of(request)
    metrics = studio_of(request).store.of(job)
    scores, evaluations = run_state.evaluations(metrics.rows.get("trainer", {}))
    shown = {"job": job, "scores": scores, "evaluations": evaluations[:_EVALUATIONS]}
    if "evaluations" in request.query_params:  # for a page that is open already
        return page(request, "evaluations.html", shown)
    now = run_state.now(job, metrics)
    read_only = studio_of(request).listener.read_only
    values = {
        "now": now,
        "why_not": control.action_refusals(job, read_only=read_only),
        "resumed": job.resumed.message(running=now["state"] in run_state.GOES_ON) if job.resumed else "",
        "facts": health.facts(job.spec, job.dir.root),
        "names": metrics.names(),
        "curves": CURVES,
        "axes": AXES,
        "updates": job.spec.updates_per_step,
        "buffer": _BUFFER,
    }
    return page(request, "run.html", values | shown)


def metrics(request: Request) -> Response:
    """``?name=…``: the series asked for, name → [steps, values]; and how far each side has been read."""
    found = studio_of(request).store.of(job_of(request))
    series = found.series(request.query_params.getlist("name"))
    return as_json({"series": series, "last": found.last(), "history": found.history})


def seconds(request: Request) -> Response:
    """The latest steps' seconds by part: {side: [[step, {part: seconds}], …]}."""
    found = studio_of(request).store.of(job_of(request))
    return as_json(step_time.seconds(found.after({}), most=_LANE_STEPS) | {"waiting": step_time.WAITING})


def configuration(request: Request) -> HTMLResponse:
    """The configuration in effect, each value with where it came from."""
    job = job_of(request)
    folder = job.dir.root / "config"
    launches = _section(folder / "audit.json").get("launches")
    launch = launches[0] if isinstance(launches, list) and launches else None
    findings = launch.get("findings") if isinstance(launch, dict) else None
    found = (
        [_finding(each) for each in findings if isinstance(each, dict)] if isinstance(findings, list) else []
    )
    chosen = request.query_params.get("status", "")
    texts = [(name, _text(folder / name)) for name in _RECORDS]
    values = {
        "job": job,
        "total": len(found),
        "counts": _counts(found),
        "status": chosen,
        "findings": [finding for finding in found if chosen in ("", finding["status"])],
        "texts": [(name, text) for name, text in texts if text is not None],
        "launch": _section(folder / "launch.json"),
    }
    return page(request, "configuration.html", values)


@reading
def proof(request: Request) -> HTMLResponse:
    """Show the report of what the run trained."""
    job = job_of(request)
    record, start = (_section(job.dir.root / "config" / f"{name}.json") for name in ("launch", "start"))
    found = job.database().run(lambda conn: sections(conn, job.spec, record, start), write=False)
    values = {"job": job, "report": Markup(as_part(RunReport(job.name, found)))}
    return page(request, "proof.html", values)


def log(request: Request) -> Response:
    """A process's whole log as a file, secrets masked. Raises HTTPException 404 where it has none."""
    job, name = job_of(request), request.query_params.get("name", "")
    if name not in logs.names(job.dir):
        raise HTTPException(404, "The run has no such log.")
    try:
        text = logs.clean(job_files.text(job.dir.log(name)))
    except OSError as error:
        raise HTTPException(409, f"The log cannot be read: it {error.strerror}.") from error
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}.log"}
    return Response(text, media_type="text/plain; charset=utf-8", headers=headers)


def _counts(findings: Sequence[dict[str, object]]) -> list[tuple[str, int, str]]:
    """Return (status, its keys, its meaning) of each status that occurs, mildest first."""
    order = {status.value: place for place, status in enumerate(STATUS_MEANS)}
    means = {status.value: text for status, text in STATUS_MEANS.items()}
    counted = Counter(str(finding["status"]) for finding in findings)
    found = sorted(counted, key=lambda status: (order.get(status, len(order)), status))
    return [(status, counted[status], means.get(status, "")) for status in found]


def _section(path: Path) -> dict[str, object]:
    """Return the section of a JSON file; empty where it cannot be read or is not a section."""
    try:
        found = json.loads(job_files.text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _finding(finding: dict[str, object]) -> dict[str, object]:
    key, target = str(finding.get("key")), str(finding.get("target") or "")
    return finding | {
        "key": key,
        "value": hidden(key, finding.get("value")),
        "target": target,
        "target_value": hidden(target or key, finding.get("target_value")),
        "source": finding.get("source") or "default",
        "reason": shown(str(finding.get("reason") or "")),
        "status": str(finding.get("status", "")),
    }


def _text(path: Path) -> str | None:
    """The file, line by line, secrets masked (``KEY: value`` of YAML as well); None where there is none."""
    try:
        return "\n".join(shown(line) for line in job_files.text(path).splitlines())
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
