"""The workspace: runs and baselines in the same charts beside the list of runs, and two sides compared."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from trinity_compat.common.errors import UserError
from trinity_compat.compare.curves import samples_of, updates_of
from trinity_compat.compare.names import groups, is_trinity, rename
from trinity_compat.studio import compare_page, run_state
from trinity_compat.studio.baselines import FORMATS, Baseline
from trinity_compat.studio.compare_page import OF_THE_RUN, selected
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.pages import as_json, form_of, page, studio_of, whole_number
from trinity_compat.studio.panels import Panels
from trinity_compat.studio.run_pages import AXES, CURVES
from trinity_compat.studio.runs_page import PAGE, SORTS, ChosenRuns, RunsQuery

MOST = 16  # lines
_COLOURS = (*range(1, 9), *range(10, 18))  # the ninth is that of what has no name
_AGAIN_S = 5.0  # until the next look at a baseline's files
_SHARE = 20  # a page waits at least so many times as long as the look took
_SAMPLES = ("samples", "answers, as many as a step has: both sides must record their batch size")
# How runs that differ only in their seed are drawn, and its name on the page.
_LINES = ("lines", "a line each")
_BANDS = (("band", "mean, lowest to highest"), ("quartiles", "mean, quartiles"))


@dataclass(frozen=True, slots=True)
class _Line:
    """A run in the charts. ``set`` is equal for runs that are drawn as seeds: a side's, or alike ones."""

    name: str
    label: str
    updates: int
    samples: int | None
    names: frozenset[str]
    set: object
    side: str
    seed: int | None = None  # of a baseline


def workspace(request: Request) -> Response:
    """Show the runs that the address names, ``?run=…``, and the sides ``a=…`` and ``b=…`` compared."""
    given, query = request.query_params, compare_page.query_of(request)
    names = {key: given.getlist(key) for key in ("a", "b", "run")}
    kept = [(key, name) for key, of_key in names.items() for name in of_key]
    sides = {name: key for key, name in reversed(kept)}
    lines: list[_Line] = []
    problems = []
    for name in dict.fromkeys(name for _, name in kept):
        try:
            lines += _lines(request, selected(request, name), sides[name].removeprefix("run"))
        except UserError as error:
            problems.append(f"{name}: {error}")
    if (count := max(len(lines), len(sides))) > MOST:
        raise HTTPException(400, f"At most {MOST} runs have room in a chart; {count} are chosen.")
    told = compare_page.told(request, query)
    metrics = {name for line in lines for name in line.names}
    scores = sorted(name for name in metrics if name.startswith("val-core/"))
    common = [*(name for name in CURVES if name in metrics), *scores[:2]]
    key_curves = told["found"]["curves"] if isinstance(told["found"], dict) else []
    layouts: Panels = request.app.state.panels
    saved, ignored = layouts.read()
    values = told | {
        "lines": _drawn(lines),
        "choice": _choice(request, sides.keys()),
        "chosen": names,
        "problems": [*problems, *([ignored] if ignored else [])],
        "panels": saved,
        "kept": kept,
        "may_save": not (ignored or studio_of(request).listener.read_only),
        "names": sorted(metrics),
        "groups": groups(),
        "curves": key_curves or common or sorted(metrics)[:6],
        "axes": (*AXES, _SAMPLES),
        "seeds": (*_BANDS, _LINES) if query else (_LINES, *_BANDS),
    }
    return page(request, "compare.html", values)


def _drawn(lines: Sequence[_Line]) -> list[dict[str, object]]:
    """Return what the page's script gets of each line: a side has one colour, other runs have their own."""
    sets = list(dict.fromkeys(line.set for line in lines))
    sides = {line.side: "ab".index(line.side) + 1 for line in lines if line.side}
    free = iter(colour for colour in _COLOURS if colour not in sides.values())
    colours = [sides.get(line.side) or next(free) for line in lines]
    return [
        asdict(replace(line, names=frozenset(), set=sets.index(line.set))) | {"names": None, "colour": colour}
        for line, colour in zip(lines, colours, strict=True)
    ]


def _choice(request: Request, chosen: Collection[str]) -> dict[str, object]:
    """Return a page of the list of runs, the ``chosen`` ones on each. Raises HTTPException 400."""
    studio = studio_of(request)
    query = replace(RunsQuery.of(request), group="", columns=())
    everything = list(studio.jobs.all().values())
    found = ChosenRuns.of(everything, query, studio.summaries)
    first = found.first_after(query.after)
    jobs = found.jobs[first : first + PAGE]
    before = [job for job in everything if job.name in chosen]
    named = {job.name: job for job in (*before, *jobs)}
    read, _ = studio.summaries.of_all(
        (job for job in named.values() if job.name not in found.known), math.inf
    )
    rows = {**found.known, **read}
    baselines, more = _baselines_of(request, query, chosen)
    return {
        "query": query,
        "chosen": [rows[job.name] for job in before],
        "rows": [rows[job.name] for job in jobs if job.name not in chosen],
        "first": first,
        "shown": len(jobs),
        "count": len(found.jobs),
        "next": found.place(jobs[-1]) if first + PAGE < len(found.jobs) else "",
        "unread": found.unread,
        "baselines": baselines,
        "more_baselines": more,
        "are_more": studio.comparisons.baselines.are_more,
        "formats": FORMATS,
        "sorts": SORTS,
    }


def _baselines_of(
    request: Request, query: RunsQuery, chosen: Collection[str]
) -> tuple[Sequence[Baseline], int]:
    """Return the chosen baselines and the first ones whose name has the query's words; how many are left."""
    words = query.words.casefold().split()
    everything = studio_of(request).comparisons.baselines.all().values()
    left = [one for one in everything if one.name not in chosen]
    found = [one for one in left if all(word in one.label.casefold() for word in words)]
    return [*(one for one in everything if one.name in chosen), *found[:PAGE]], max(0, len(found) - PAGE)


async def panels(request: Request) -> Response:
    """Save the layout of a form, or remove one, and show the form's runs again."""
    form = await form_of(request)
    fields = ("run", "a", "b", "metric")
    pairs = [(key, text) for key in fields for text in form.getlist(key) if isinstance(text, str)]
    removed, name, view = (str(form.get(key, "")) for key in ("remove", "name", "view"))
    kept: Panels = request.app.state.panels
    try:
        if removed:
            await run_in_threadpool(kept.remove, removed)
        else:
            await run_in_threadpool(kept.save, name, [text for key, text in pairs if key == "metric"], view)
    except UserError as error:
        raise HTTPException(400, str(error)) from error
    query = urlencode([*pairs, *parse_qsl(view)], errors="replace")
    return RedirectResponse(f"{studio_of(request).listener.base}/compare?{query}", 303)


def _lines(request: Request, one: Job | Baseline, side: str) -> Iterator[_Line]:
    """Yield the selection's runs. Raises UserError where it cannot be read."""
    studio = studio_of(request)
    if isinstance(one, Job):
        if problem := run_state.database_problem(one):
            raise UserError(problem)
        names = frozenset(studio.store.of(one).names())
        settings = one.configuration()
        batch, n = (settings.get(key) for key in ("data.train_batch_size", "actor_rollout_ref.rollout.n"))
        samples = batch * n if isinstance(batch, int) and isinstance(n, int) else None
        alike = side or configuration_but_seeds(settings)
        yield _Line(one.name, one.name, one.spec.updates_per_step, samples, names, alike, side)
        return
    runs = studio.comparisons.baselines.runs(one)
    for seed, run in enumerate(runs):
        label = one.name if len(runs) == 1 else f"{one.name} {run.name}"
        names, alike = frozenset(rename(run, {})[0]), side or one.name
        yield _Line(one.name, label, updates_of(run) or 1, samples_of(run), names, alike, side, seed)


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
    kept = (key for key, last in last_parts if "seed" not in last and last not in OF_THE_RUN)
    return tuple(sorted((key, repr(configuration[key])) for key in kept))
