"""The page of all runs: filtered, sorted, grouped, a page at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from trinity_compat.common.errors import UserError
from trinity_compat.common.redaction import hidden
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.pages import page, studio_of
from trinity_compat.studio.run_state import MEANS, Summaries

PAGE = 50
_OFFERED = 60  # configuration keys
_FIGURES = ("step", "reward", "lag", "tokens_per_s", "step_s")  # columns that sort by a row's figure
_SORTS = ("changed", "name", "state", *_FIGURES)
Value = float | str | None


@dataclass(frozen=True, slots=True)
class RunsQuery:
    """A reader's query. ``columns``, and ``sort`` and ``group`` too, may be configuration keys."""

    words: str
    state: str
    sort: str
    up: bool
    group: str
    columns: tuple[str, ...]
    after: str  # the last job of the page before

    @classmethod
    def of(cls, request: Request) -> RunsQuery:
        """Raises HTTPException 400 for a state that no run has."""
        given = request.query_params
        state = given.get("state", "")
        if state and state not in MEANS:
            raise HTTPException(400, f"state must be one of {', '.join(MEANS)}.")
        sort, columns = given.get("sort") or "changed", dict.fromkeys(given.getlist("column"))
        up = given.get("up", "1" if sort in ("name", "state") else "") == "1"
        return cls(
            given.get("words", ""), state, sort, up, given.get("group", ""), tuple(filter(None, columns)),
            given.get("after", ""),
        )  # fmt: skip

    def address(self, **changes: object) -> str:
        """Return the query of this page with ``changes``; of the first page unless they name ``after``."""
        given = {"words": self.words, "state": self.state, "sort": self.sort, "up": int(self.up)}
        given |= {"group": self.group, "column": self.columns}
        kept = {name: value for name, value in {**given, **changes}.items() if value not in ("", ())}
        return "?" + urlencode(kept, doseq=True, errors="replace")


def runs(request: Request) -> HTMLResponse:
    """Show the jobs below the folder, the latest changed first; only those shown are read."""
    studio, query = studio_of(request), RunsQuery.of(request)
    jobs = _chosen(list(studio.jobs.all().values()), query, studio.summaries)
    names = [job.name for job in jobs]
    first = names.index(query.after) + 1 if query.after in names else 0
    shown = jobs[first : first + PAGE]
    rows = [studio.summaries.of(job) for job in shown]
    configurations = {job.name: _configuration(job) for job in shown}
    headings = {job.name: _group(job, query.group) for job in shown} if query.group else {}
    values = {
        "parts": [
            (heading, list(part)) for heading, part in groupby(rows, lambda row: headings.get(row.name, ""))
        ],
        "query": query,
        "count": len(jobs),
        "first": first,
        "shown": len(shown),
        "next": shown[-1].name if first + PAGE < len(jobs) else "",
        "cells": {
            name: [_cell(found, key) for key in query.columns] for name, found in configurations.items()
        },
        "offered": _differing(list(configurations.values())),
        "states": MEANS,
        "sorts": dict.fromkeys((*_SORTS, query.sort)),
        "chosen": request.query_params.getlist("run"),
        "warned": sum(bool(row.alerts) and row.state == "running" for row in rows),
    }
    return page(request, "runs_table.html" if "table" in request.query_params else "runs.html", values)


def _chosen(jobs: Sequence[Job], query: RunsQuery, summaries: Summaries) -> list[Job]:
    """Return the jobs of the query in its order."""
    words = query.words.casefold().split()
    found = [job for job in jobs if all(word in job.name.casefold() for word in words)]
    if query.state:
        found = [job for job in found if summaries.of(job).state == query.state]
    value = _sort_value(query.sort, summaries)
    known = {job.name: value(job) for job in found}
    missing = [job for job in found if known[job.name] is None]
    found = [job for job in found if known[job.name] is not None]
    # Numbers before texts, as one key may have both; those without a value last in both directions.
    found.sort(key=lambda job: _order(known[job.name]), reverse=not query.up)
    found += missing
    return sorted(found, key=lambda job: _order(_group(job, query.group))) if query.group else found


def _order(value: Value) -> tuple[int, float, str]:
    return (0, value, "") if isinstance(value, float) else (1, 0.0, value or "")


def _sort_value(sort: str, summaries: Summaries) -> Callable[[Job], Value]:
    if sort == "changed":
        return Job.changed_at
    if sort == "name":
        return lambda job: job.name
    if sort in ("state", *_FIGURES):
        return lambda job: _sortable(getattr(summaries.of(job), sort))
    return lambda job: _sortable(_configuration(job).get(sort))


def _sortable(value: object) -> Value:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _group(job: Job, key: str) -> str:
    """Return the group's heading: the folder, or the value of a configuration key."""
    if key == "folder":
        return job.name.rpartition("/")[0] or "(the studio's folder)"
    return f"{key} = {_cell(_configuration(job), key)}"


def _configuration(job: Job) -> Mapping[str, object]:
    """Return dotted key → value; empty where the job cannot be read."""
    try:
        return job.configuration()
    except UserError:
        return {}


def _cell(configuration: Mapping[str, object], key: str) -> str:
    return str(hidden(key, configuration[key])) if key in configuration else "–"


def _differing(configurations: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the keys that tell the shown runs apart, those of the run's own place and name left out."""
    keys = dict.fromkeys(key for found in configurations for key in found)
    differing = [key for key in keys if len({repr(found.get(key)) for found in configurations}) > 1]
    return sorted(differing)[:_OFFERED]
