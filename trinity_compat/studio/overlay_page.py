"""Several runs in the same charts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from trinity_compat.common.errors import UserError
from trinity_compat.compare.curves import updates_of
from trinity_compat.compare.names import is_trinity, rename
from trinity_compat.studio import run_state
from trinity_compat.studio.baselines import Baseline
from trinity_compat.studio.compare_page import SEEDS, selected
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.pages import as_json, form_of, page, studio_of, whole_number
from trinity_compat.studio.panels import Panels
from trinity_compat.studio.run_pages import AXES, CURVES

MOST = 16  # lines
_COLOURS = 8
_AGAIN_S = 5.0  # until the next look at a baseline's files
# Last parts of keys that name a run, its place or where it reports; "seed" is a part of seeds' names.
_OF_THE_RUN = frozenset(
    (
        "experiment_name",
        "project_name",
        "run_name",
        "default_local_dir",
        "default_hdfs_dir",
        "rollout_data_dir",
        "validation_data_dir",
        "resume_from_path",
        "resume_mode",
        "logger",
    )
)
_SHARE = 20  # a page waits at least so many times as long as the look took


@dataclass(frozen=True, slots=True)
class _Line:
    """A run of the overlay. ``alike`` is equal for runs that differ only in their seed."""

    name: str
    label: str
    updates: int
    names: frozenset[str]
    alike: object
    seed: int | None = None  # of a baseline


def overlay(request: Request) -> HTMLResponse:
    """Show the curves of the runs that the address names, ``?run=…&run=…``."""
    chosen = [selected(request, name) for name in dict.fromkeys(request.query_params.getlist("run"))]
    lines: list[_Line] = []
    problems = []
    for one in chosen:
        try:
            lines += _lines(request, one)
        except UserError as error:
            problems.append(f"{one.name}: {error}")
    if max(len(lines), len(chosen)) > MOST:
        count = max(len(lines), len(chosen))
        raise HTTPException(400, f"At most {MOST} runs have room in a chart; {count} are chosen.")
    panels, ignored = _panels_of(request).read()
    names = {name for line in lines for name in line.names}
    sets = list(dict.fromkeys(line.alike for line in lines))
    values = {
        "runs": [
            {
                "name": line.name,
                "label": line.label,
                "seed": line.seed,
                "updates": line.updates,
                "set": sets.index(line.alike),
                "colour": number % _COLOURS + 1,
                "dashed": number >= _COLOURS,
                "without": [other.name for other in chosen if other.name != line.name],
            }
            for number, line in enumerate(lines)
        ],
        "names_of": [one.name for one in chosen],
        "offered": list(studio_of(request).comparisons.baselines.all().values()),
        "problems": [*problems, *([ignored] if ignored else [])],
        "panels": [(panel.name, [("metric", name) for name in panel.metrics]) for panel in panels],
        "of_runs": [("run", one.name) for one in chosen],
        "may_save": not (ignored or studio_of(request).listener.read_only),
        "names": sorted(names),
        "curves": [name for name in CURVES if name in names] or sorted(names)[:6],
        "axes": AXES,
        "seeds": (("lines", "a line each"), *SEEDS[:2]),
    }
    return page(request, "overlay.html", values)


def _panels_of(request: Request) -> Panels:
    found: Panels = request.app.state.panels
    return found


async def panels(request: Request) -> Response:
    """Save the panel of a form, or remove one, and show the form's runs again."""
    form = await form_of(request)
    names, runs = ([text for text in form.getlist(key) if isinstance(text, str)] for key in ("metric", "run"))
    removed, name = (str(form.get(key, "")) for key in ("remove", "name"))
    kept = _panels_of(request)
    try:
        if removed:
            await run_in_threadpool(kept.remove, removed)
        else:
            await run_in_threadpool(kept.save, name, names)
    except UserError as error:
        raise HTTPException(400, str(error)) from error
    query = [("run", run) for run in runs] + [("metric", name) for name in names]
    return RedirectResponse(
        f"{studio_of(request).listener.base}/overlay?{urlencode(query, errors='replace')}", 303
    )


def _lines(request: Request, one: Job | Baseline) -> Iterator[_Line]:
    """Yield the selection's runs. Raises UserError where it cannot be read."""
    studio = studio_of(request)
    if isinstance(one, Job):
        if problem := run_state.database_problem(one):
            raise UserError(problem)
        names = frozenset(studio.store.of(one).names())
        alike = configuration_but_seeds(one.configuration())
        yield _Line(one.name, one.name, one.spec.updates_per_step, names, alike)
        return
    runs = studio.comparisons.baselines.runs(one)
    for seed, run in enumerate(runs):
        label = one.name if len(runs) == 1 else f"{one.name} {run.name}"
        names = frozenset(rename(run, {})[0])
        yield _Line(one.name, label, updates_of(run) or 1, names, one.name, seed)


def baseline(request: Request) -> Response:
    """Return ``?of=…&seed=…&name=…``: series of a baseline's run by veRL's step, name → [steps, values].

    ``state`` tells its files from what they become. A page that has the same one gets no series. It may ask
    again in ``wait_s``.
    """
    given = request.query_params
    found = selected(request, given.get("of", ""))
    if isinstance(found, Job):
        raise HTTPException(400, "The address must name a baseline.")
    seed, began = whole_number(given.get("seed", ""), "seed"), time.monotonic()
    told: dict[str, object] = {"state": found.state()}
    if told["state"] != given.get("state"):
        runs = studio_of(request).comparisons.baselines.runs(found)
        if seed >= len(runs):
            raise HTTPException(404, f"{found.name} has {len(runs)} runs.")
        series, run = rename(runs[seed], {})[0], runs[seed]
        updates = updates_of(run) or 1 if is_trinity(run) else 1  # Trinity-RFT counts optimizer updates
        found_of = {name: series[name].latest() for name in given.getlist("name") if name in series}
        told["series"] = {
            name: ([step / updates for step in one.steps], list(one.values)) for name, one in found_of.items()
        }
    return as_json(told | {"wait_s": max(_AGAIN_S, _SHARE * (time.monotonic() - began))})


def configuration_but_seeds(configuration: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Return the settings that decide what a run trains: equal for runs that differ only in their seed."""
    last_parts = ((key, key.rpartition(".")[2]) for key in configuration)
    kept = (key for key, last in last_parts if "seed" not in last and last not in _OF_THE_RUN)
    return tuple(sorted((key, repr(configuration[key])) for key in kept))
