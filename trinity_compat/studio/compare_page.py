"""The comparison of two sides: verdict, configurations, last values, answers to the same task."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trinity_compat.common.errors import UserError
from trinity_compat.common.redaction import hidden, shown
from trinity_compat.compare import inference
from trinity_compat.compare.axes import AXES
from trinity_compat.compare.conclusion import UNITS, group_rows, headline, key_metrics
from trinity_compat.compare.configs import of_runs
from trinity_compat.compare.decide import DIFFERS
from trinity_compat.compare.html import as_html, drawn
from trinity_compat.compare.names import is_of_learning
from trinity_compat.compare.report import COLUMNS, row_of
from trinity_compat.compare.verdict import Comparison, MetricVerdict
from trinity_compat.studio.baselines import PREFIX
from trinity_compat.studio.comparisons import ComparisonQuery, Selection
from trinity_compat.studio.experiences import index_of, read_answers
from trinity_compat.studio.group_page import MOST_ANSWERS
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.pages import as_json, job_named, page, studio_of
from trinity_compat.studio.run_state import GOES_ON

_TASKS = 12
# Last parts of keys that name a run, its place or where it reports; "seed" is a part of seeds' names.
OF_THE_RUN = (
    *("experiment_name", "project_name", "run_name", "default_local_dir", "default_hdfs_dir"),
    *("rollout_data_dir", "validation_data_dir", "resume_from_path", "resume_mode", "logger"),
)
_SOON_S, _LATER_S = 5.0, 30.0  # until the next look at sides of which a run goes on, at others
_SHARE = 10  # a page waits at least so many times as long as the comparison took
Newest = tuple[int, float]  # step, mean reward


def query_of(request: Request) -> ComparisonQuery | None:
    """Return the query, None unless both sides name a job. Raises HTTPException 404 for an unknown job."""
    given = request.query_params
    names = (dict.fromkeys(given.getlist(side)) for side in "ab")
    a, b = (tuple(selected(request, name) for name in side) for side in names)
    axis = given.get("x") or given.get("axis") or "step"
    known = next((one for one in AXES if one == axis), None)
    if known is None:
        raise HTTPException(400, f"x must be one of {', '.join(AXES)}.")
    return ComparisonQuery(a, b, known) if a and b else None


def selected(request: Request, name: str) -> Selection:
    """Return the studio's job or baseline of that name. Raises HTTPException 404."""
    if name.startswith(PREFIX) and (found := studio_of(request).comparisons.baselines.get(name)):
        return found
    return job_named(request, name)


def told(request: Request, query: ComparisonQuery | None) -> dict[str, object]:
    """Return what a page shows of a comparison, or why there is none."""
    values: dict[str, object] = {"query": query, "state": "", "found": None, "problem": ""}
    try:
        if query:
            values["state"] = _state(request, query)
            values["found"] = _found(request, studio_of(request).comparisons.of(query), query)
    except UserError as error:
        values["problem"] = str(error)
    return values


def verdict(request: Request) -> Response:
    """Return what an open page that has ``?state=…`` lacks: nothing, a problem, or the parts that changed."""
    studio, query = studio_of(request), _asked(request)
    told: dict[str, object] = {"state": request.query_params.get("state", "")}
    try:
        state, result = _state(request, query), studio.comparisons.of(query)
        if state != told["state"]:
            found = _found(request, result, query)
            parts = {
                part: studio.templates.get_template(f"{part}.html").render(found=found)
                for part in ("verdict", "statistics")
            }
            told = {"state": state, "first": found["first"], "html": parts}
    except UserError as error:
        told["problem"] = str(error)
    going = any(_run_state(request, one) in GOES_ON for one in (*query.a, *query.b))
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
        "lost": [str(keys) for keys in (*result.lost_by_stock, *result.ignored_by_stock)],
        "rest": rest,
        "columns": COLUMNS,
        "tables": _tables(result),
        "groups": group_rows(result),
        "curves": key_metrics(result),
        "unit": UNITS[query.axis],
        "last": [_last(metric) for name in key_metrics(result) for metric in (result.metric(name),)],
        "configuration": _differences(result),
        "tasks": _tasks(query.a[0], query.b[0]),
        "address": query.address,
        "incomplete": inference.missing() or "",
    }


def _last(metric: MetricVerdict) -> tuple[str, float | None, float | None, float | None, str]:
    """Return a metric's name, its means over A's and B's runs at the last common x, B − A, its verdict."""
    a, b = (side.mean[-1] if side.mean else None for side in (metric.a, metric.b))
    return metric.name, a, b, None if a is None or b is None else b - a, metric.verdict


def _tables(result: Comparison) -> list[tuple[str, list[list[str]]]]:
    """Return (title, rows of COLUMNS): the key metrics and those of learning that differ, then each group."""
    key = key_metrics(result)
    differ = [m.name for m in result.metrics if m.verdict == DIFFERS and is_of_learning(m.group)]
    named = {metric.name: metric for metric in result.metrics}
    first = [row_of(named[name]) for name in dict.fromkeys((*key, *differ))]
    return [
        ("key metrics", first),
        *((group, [row_of(metric) for metric in metrics]) for group, metrics in result.groups.items()),
    ]


def _differences(result: Comparison) -> list[dict[str, object]] | None:
    """Return the configuration differences of the sides' first runs, None where one is not recorded."""
    found = of_runs(*(side.runs[0].meta for side in (result.a, result.b)))
    if found is None:
        return None
    return [
        {side: hidden(str(row["key"]), row[side]) for side in "ab"}
        | {"key": row["key"], "why": shown(str(row["why"])), "kind": _kind_of(row)}
        for row in found
    ]


def _kind_of(row: Mapping[str, object]) -> str:
    """Return whether a row's values differ, name the run, or are equal where an effect is not as in veRL."""
    if row["a"] == row["b"]:
        return "equal"
    return "naming" if str(row["key"]).rpartition(".")[2] in OF_THE_RUN else "differs"


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
