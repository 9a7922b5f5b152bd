"""The pages that compare runs: verdict, curves, configurations, answers to the same task."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trinity_compat.common.errors import UserError
from trinity_compat.common.redaction import hidden, shown
from trinity_compat.compare import inference
from trinity_compat.compare.axes import AXES
from trinity_compat.compare.conclusion import group_rows, headline, key_metrics
from trinity_compat.compare.configs import of_runs
from trinity_compat.compare.decide import DIFFERS
from trinity_compat.compare.html import as_html, drawn
from trinity_compat.compare.names import is_of_learning
from trinity_compat.compare.report import COLUMNS, row_of
from trinity_compat.compare.verdict import Comparison
from trinity_compat.studio.baselines import FORMATS, PREFIX, Baseline
from trinity_compat.studio.comparisons import ComparisonQuery, Selection
from trinity_compat.studio.experiences import index_of, read_answers
from trinity_compat.studio.group_page import MOST_ANSWERS
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.pages import as_json, job_named, page, studio_of
from trinity_compat.studio.runs_page import PAGE, SORTS, ChosenRuns, RunsQuery

_TASKS = 12
# How the runs of a side are drawn, and its name on the page.
SEEDS = (("band", "mean, lowest to highest"), ("quartiles", "mean, quartiles"), ("lines", "a line each"))
_SOON_S, _LATER_S = 5.0, 30.0  # until the next look at sides of which a run goes on, at others
_SHARE = 10  # a page waits at least so many times as long as the comparison took
Newest = tuple[int, float]  # step, mean reward


def query_of(request: Request) -> ComparisonQuery | None:
    """Return the query, None unless both sides name a job. Raises HTTPException 404 for an unknown job."""
    given = request.query_params
    names = (dict.fromkeys(given.getlist(side)) for side in "ab")
    a, b = (tuple(selected(request, name) for name in side) for side in names)
    axis = given.get("axis") or "step"
    known = next((one for one in AXES if one == axis), None)
    if known is None:
        raise HTTPException(400, f"axis must be one of {', '.join(AXES)}.")
    return ComparisonQuery(a, b, known) if a and b else None


def selected(request: Request, name: str) -> Selection:
    """Return the studio's job or baseline of that name. Raises HTTPException 404."""
    if name.startswith(PREFIX) and (found := studio_of(request).comparisons.baselines.get(name)):
        return found
    return job_named(request, name)


def comparison(request: Request) -> Response:
    """Show a form to choose two sides, and their comparison."""
    studio, query = studio_of(request), query_of(request)
    chosen = {side: request.query_params.getlist(side) for side in "ab"}
    values: dict[str, object] = {
        "choice": _choice(request, {name for names in chosen.values() for name in names}),
        "are_more": studio.comparisons.baselines.are_more,
        "formats": FORMATS,
        "chosen": chosen,
        "axes": AXES,
        "axis": query.axis if query else "step",
        "query": query,
        "state": "",
        "found": None,
        "problem": "",
    }
    if query:
        try:
            values |= {"state": _state(request, query)}
            values |= {"found": _found(request, studio.comparisons.of(query), query)}
        except UserError as error:
            values |= {"problem": str(error)}
    return page(request, "compare.html", values)


def _choice(request: Request, chosen: Collection[str]) -> dict[str, object]:
    """Return a page of the runs that the form offers, filtered as the list of runs.

    A run or baseline whose name is in ``chosen`` is on each page. Raises HTTPException 400 for a value that
    is not valid.
    """
    studio = studio_of(request)
    query = replace(RunsQuery.of(request), group="", columns=())
    everything = list(studio.jobs.all().values())
    found = ChosenRuns.of(everything, query, studio.summaries)
    first = found.first_after(query.after)
    jobs = found.jobs[first : first + PAGE]
    before = [job for job in everything if job.name in chosen]
    named = {job.name: job for job in (*before, *jobs)}
    read, _ = studio.summaries.of_all(
        [job for job in named.values() if job.name not in found.known], math.inf
    )
    rows = {name: found.known.get(name) or read[name] for name in named}
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
        "sorts": SORTS,
    }


def _baselines_of(
    request: Request, query: RunsQuery, chosen: Collection[str]
) -> tuple[Sequence[Baseline], int]:
    """Return the chosen baselines and the first ones whose name has the query's words; how many are left."""
    words = query.words.casefold().split()
    everything = studio_of(request).comparisons.baselines.all().values()
    others = [one for one in everything if all(word in one.label.casefold() for word in words)]
    others = [one for one in others if one.name not in chosen]
    return [*(one for one in everything if one.name in chosen), *others[:PAGE]], max(0, len(others) - PAGE)


def verdict(request: Request) -> Response:
    """Return what an open page that has ``?state=…`` lacks: nothing, a problem, or the parts that changed."""
    studio, query = studio_of(request), _asked(request)
    told: dict[str, object] = {"state": request.query_params.get("state", "")}
    try:
        state, result = _state(request, query), studio.comparisons.of(query)
        if state != told["state"]:
            found = _found(request, result, query)
            html = studio.templates.get_template("verdict.html").render(found=found)
            told = {"state": state, "first": found["first"], "html": html, "names": found["names"]}
    except UserError as error:
        told["problem"] = str(error)
    going = any(_run_state(request, one) in ("running", "starting") for one in (*query.a, *query.b))
    wait_s = max(_SOON_S if going else _LATER_S, _SHARE * studio.comparisons.took_s)
    return as_json(told | {"wait_s": wait_s})


def _state(request: Request, query: ComparisonQuery) -> str:
    """Return a text that changes when a page of the query shows something else. Raises UserError."""
    return ".".join([query.state(), *(_run_state(request, one) for one in (*query.a, *query.b))])


def _asked(request: Request) -> ComparisonQuery:
    """Return the query. Raises HTTPException 400 where the address does not name two sides."""
    query = query_of(request)
    if query is None:
        raise HTTPException(400, "The address must name two sides.")
    return query


def _run_state(request: Request, one: Selection) -> str:
    return studio_of(request).summaries.of(one).state if isinstance(one, Job) else "baseline"


def _found(request: Request, result: Comparison, query: ComparisonQuery) -> dict[str, object]:
    first, *rest = headline(result)
    sides = {"a": (result.a, query.a), "b": (result.b, query.b)}
    return {
        "sides": {
            name: (
                side.label,
                [studio_of(request).summaries.of(one) for one in chosen if isinstance(one, Job)],
                sorted({run.kind for run in side.runs}),
            )
            for name, (side, chosen) in sides.items()
        },
        "first": first,
        "rest": rest,
        "columns": COLUMNS,
        "tables": _tables(result),
        "groups": group_rows(result),
        "curves": key_metrics(result),
        "seeds": SEEDS,
        "names": [metric.name for metric in result.metrics],
        "configuration": _differences(result),
        "tasks": _tasks(query.a[0], query.b[0]),
        "address": query.address,
        "query": query.sides,
        "incomplete": inference.missing() or "",
    }


def _tables(result: Comparison) -> list[tuple[str, list[list[str]]]]:
    """Return (title, rows of COLUMNS): the key metrics and those of learning that differ, then each group."""
    key = key_metrics(result)
    differ = [m.name for m in result.metrics if m.verdict == DIFFERS and is_of_learning(m.group)]
    named = {metric.name: metric for metric in result.metrics}
    first = [row_of(named[name]) for name in dict.fromkeys((*key, *differ))]
    return [
        ("", first),
        *((group, [row_of(metric) for metric in metrics]) for group, metrics in result.groups.items()),
    ]


def _differences(result: Comparison) -> list[dict[str, object]] | None:
    """Return the configuration differences of the sides' first runs, None where one is not recorded."""
    found = of_runs(*(side.runs[0].meta for side in (result.a, result.b)))
    if found is None:
        return None
    masked = ({side: hidden(str(row["key"]), row[side]) for side in "ab"} for row in found)
    return [row | values | {"why": shown(str(row["why"]))} for row, values in zip(found, masked, strict=True)]


def _tasks(a: Selection, b: Selection) -> list[tuple[str, Newest, Newest]]:
    """Return (task, A's newest, B's newest) of tasks that both answered, the largest difference first."""
    if not (isinstance(a, Job) and isinstance(b, Job)):
        return []
    try:
        ours, theirs = (index_of(job)[0].newest_by_task("train") for job in (a, b))
    except UserError:
        return []
    rows = [(task, newest, theirs[task]) for task, newest in ours.items() if task in theirs]
    return sorted(rows, key=lambda row: -abs(row[1][1] - row[2][1]))[:_TASKS]


def curves(request: Request) -> Response:
    """Return name → metric with its drawn points, for each ``?name=…``."""
    result = studio_of(request).comparisons.of(_asked(request))
    wanted = set(request.query_params.getlist("name"))
    return as_json({metric.name: drawn(metric) for metric in result.metrics if metric.name in wanted})


def report(request: Request) -> Response:
    """Return the HTML report as a download, so that it never runs in the studio's origin."""
    result = studio_of(request).comparisons.of(_asked(request))
    headers = {"content-disposition": 'attachment; filename="comparison.html"'}
    text = as_html(result, config_diff=_differences(result)).encode(errors="replace")
    return Response(text, media_type="text/html", headers=headers)


def same_task(request: Request) -> Response:
    """Show the newest answers of both sides to one task."""
    query = query_of(request)
    task = request.query_params.get("task", "")
    if query is None or not task:
        raise HTTPException(400, "The address must name two sides and a task.")
    jobs = [one for one in (query.a[0], query.b[0]) if isinstance(one, Job)]
    if len(jobs) < 2:
        raise HTTPException(400, "A baseline has no answers.")
    sides = [_of_task(job, task) for job in jobs]
    return page(request, "same_task.html", {"task": task, "sides": sides, "address": query.address})


def _of_task(job: Job, task: str) -> dict[str, object]:
    history = index_of(job)[0].over_time("train", task)
    if not history:
        return {"job": job, "group": None, "answers": [], "prompt": "", "step": None}
    number = int(str(history[-1]["group_id"]))
    members = job.database().run(lambda conn: list(read_answers(conn, number, MOST_ANSWERS)), write=False)
    return {
        "job": job,
        "group": number,
        "step": history[-1]["step"],
        "prompt": members[0][1].prompt_text if members else "",
        "answers": [answer for _, answer in members],
    }
