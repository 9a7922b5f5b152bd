"""Several runs in the same charts."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from trinity_compat.studio import run_state
from trinity_compat.studio.pages import job_named, page, studio_of
from trinity_compat.studio.run_pages import AXES, CURVES

MOST = 16  # runs
_COLOURS = 8


def overlay(request: Request) -> HTMLResponse:
    """Show the curves of the runs that the address names, ``?run=…&run=…``."""
    studio = studio_of(request)
    jobs = [job_named(request, name) for name in dict.fromkeys(request.query_params.getlist("run"))]
    if len(jobs) > MOST:
        raise HTTPException(400, f"At most {MOST} runs have room in a chart; {len(jobs)} are chosen.")
    runs, problems, names = [], [], set()
    for number, job in enumerate(jobs):
        if problem := run_state.database_problem(job):
            problems.append(f"{job.name}: {problem}")
            continue
        names |= set(studio.store.of(job).names())
        runs.append(
            {
                "name": job.name,
                "updates": job.spec.updates_per_step,
                "colour": number % _COLOURS + 1,
                "dashed": number >= _COLOURS,
                "without": [other.name for other in jobs if other is not job],
            }
        )
    values = {
        "runs": runs,
        "problems": problems,
        "names": sorted(names),
        "curves": [name for name in CURVES if name in names] or sorted(names)[:6],
        "axes": AXES,
    }
    return page(request, "overlay.html", values)
