"""The page of all runs: filtered, sorted, grouped, a page at a time."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trinity_compat.common.plain_numbers import is_number
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.pages import as_json, page, studio_of
from trinity_compat.studio.run_state import GOES_ON, MEANS, RunSummary
from trinity_compat.studio.start_page import drafts_of, job_of_draft
from trinity_compat.studio.summaries import Summaries

PAGE = 50
_OFFERED = 60  # configuration keys
_READING_S = 0.4  # of a request, for runs that are not on its page
_READING_PAGE_S = 5.0  # for those that are: other users' jobs among them may be made to take long
_FIGURES = ("step", "reward", "lag", "tokens_per_s", "step_s")  # columns that sort by a row's figure
SORTS = ("changed", "name", "state", *_FIGURES)
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
    after: str  # the place where the page before ended

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
            given.get("words", ""), state, sort, up, given.get("group", ""),
            tuple(filter(None, columns)), given.get("after", ""),
        )  # fmt: skip

    @property
    def needs_all(self) -> bool:
        """True where every job has to be read for the order."""
        keys = self.sort not in ("changed", "name") or self.group not in ("", "folder")
        return bool(self.state) or keys

    def address(self, **changes: object) -> str:
        """Return the query of this page with ``changes``; of the first page unless they name ``after``."""
        given = {"words": self.words, "state": self.state, "sort": self.sort, "up": int(self.up)}
        given |= {"group": self.group, "column": self.columns}
        kept = {name: value for name, value in {**given, **changes}.items() if value not in ("", ())}
        return "?" + urlencode(kept, doseq=True, errors="replace")


def runs(request: Request) -> Response:
    """Show the jobs below the folder, the latest changed first.

    ``table`` is a look of a page that is open: it has the rows with the marks ``has``, and gets the others.
    """
    studio, query = studio_of(request), RunsQuery.of(request)
    chosen = ChosenRuns.of(list(studio.jobs.all().values()), query, studio.summaries)
    first = chosen.first_after(query.after)
    jobs = chosen.jobs[first : first + PAGE]
    missing = [job for job in jobs if job.name not in chosen.known]
    read, unread = studio.summaries.of_all(missing, _READING_PAGE_S)
    known = {**chosen.known, **read}
    last = jobs[-1:]
    jobs = [job for job in jobs if job.name in known]
    summaries = {job.name: known[job.name] for job in jobs}
    configurations = {job.name: studio.summaries.configuration(job) for job in jobs}
    rows = [(chosen.headings.get(job.name, ""), summaries[job.name]) for job in jobs]
    macro = studio.templates.get_template("runs_row.html").module
    parts = [
        (
            heading,
            [
                _RowText.of(macro, row, _cells(configurations[row.name], query.columns), request)
                for _, row in part
            ],
        )
        for heading, part in groupby(rows, lambda each: each[0])
    ]
    values = {
        "parts": parts,
        "query": query,
        "count": len(chosen.jobs),
        "first": first,
        "shown": len(jobs),
        "next": chosen.place(last[0]) if first + PAGE < len(chosen.jobs) else "",
        "unread": chosen.unread + unread,
        "offered": _differing(list(configurations.values())),
        "states": MEANS,
        "sorts": dict.fromkeys((*SORTS, query.sort)),
        "csrf": studio.listener.csrf,
        "pending": [each for each in drafts_of(request).launching() if job_of_draft(request, each) is None],
        "warned": sum(bool(row.alerts) and row.state in GOES_ON for row in summaries.values()),
    }
    marks = [(heading, [row.mark for row in part]) for heading, part in parts]
    pending = _rendered(request, "runs_pending.html", values)
    values["mark"] = _digest(repr((_rendered(request, "runs_foot.html", values), pending, marks)))
    return (
        _difference(request, values, parts)
        if "table" in request.query_params
        else page(request, "runs.html", values)
    )


@dataclass(frozen=True, slots=True)
class _RowText:
    """A row as HTML. ``mark`` tells it from an earlier state of it; whether it is chosen is not in that."""

    mark: str
    text: str

    @classmethod
    def of(
        cls, macro: object, row: RunSummary, cells: Sequence[tuple[str, str]], request: Request
    ) -> _RowText:
        render: Callable[..., Markup] = macro.row  # type: ignore[attr-defined]
        mark = _digest(render(row, cells, "", False))
        is_chosen = row.name in request.query_params.getlist("run")
        return cls(mark, render(row, cells, mark, is_chosen))


Parts = Sequence[tuple[str, Sequence[_RowText]]]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]


def _difference(request: Request, values: Mapping[str, object], parts: Parts) -> Response:
    """Answer a page that has the table and the rows of these marks, ``has=TABLE,ROW,ROW…``, with the rest.

    204 where it has everything; the whole table where it has no row, or none is left.
    """
    table, *rows = request.query_params.get("has", "").split(",")
    if table == values["mark"]:
        return Response(status_code=204)
    found = {name: values[name] for name in ("mark", "warned", "unread")}
    found["pending"] = _rendered(request, "runs_pending.html", values)
    if not rows or not parts:
        return as_json(found | {"table": _rendered(request, "runs_table.html", values)})
    new = {row.mark: row.text for _, part in parts for row in part if row.mark not in rows}
    order = [[heading, [row.mark for row in part]] for heading, part in parts]
    return as_json(
        found | {"foot": _rendered(request, "runs_foot.html", values), "parts": order, "rows": new}
    )


def _rendered(request: Request, template: str, values: Mapping[str, object]) -> str:
    text: str = studio_of(request).templates.get_template(template).render(values)
    return text


@dataclass(frozen=True, slots=True)
class ChosenRuns:
    """The jobs of a query in its order. ``unread``: how many are missing since they have not been read."""

    jobs: Sequence[Job]
    values: Mapping[str, Value]
    headings: Mapping[str, str]
    up: bool
    known: Mapping[str, RunSummary]
    unread: int

    @classmethod
    def of(cls, jobs: Sequence[Job], query: RunsQuery, summaries: Summaries) -> ChosenRuns:
        """Read all jobs where the query needs it, for as long as ``_READING_S``."""
        words = query.words.casefold().split()
        found = [job for job in jobs if all(word in job.name.casefold() for word in words)]
        known, unread = summaries.of_all(found, _READING_S) if query.needs_all else ({}, 0)
        if query.needs_all:
            found = [job for job in found if job.name in known]
        if query.state:
            found = [job for job in found if known[job.name].state == query.state]
        values = {job.name: _value(job, query.sort, known, summaries) for job in found}
        headings = {job.name: _heading(job, query.group, summaries) for job in found} if query.group else {}
        missing = [job for job in found if values[job.name] is None]
        found = [job for job in found if values[job.name] is not None]
        # Numbers before texts, as one key may have both; those without a value last in both directions.
        found.sort(key=lambda job: _order(values[job.name]), reverse=not query.up)
        found += missing
        if query.group:
            found.sort(key=lambda job: headings[job.name])
        return cls(found, values, headings, query.up, known, unread)

    def place(self, job: Job) -> str:
        """Return the job's place in the order, which it keeps when other jobs come, go or move."""
        return json.dumps([self.headings.get(job.name, ""), self.values[job.name], job.name])

    def first_after(self, place: str) -> int:
        """Return the number of the first job behind a place. Raises HTTPException 400 for what is none."""
        if not place:
            return 0
        try:
            heading, value, name = json.loads(place)
            value = float(value) if isinstance(value, int) else value
        except (ValueError, TypeError, OverflowError, RecursionError):
            heading = name = value = None
        is_value = isinstance(value, str | None) or (isinstance(value, int | float) and not math.isnan(value))
        if not (isinstance(heading, str) and isinstance(name, str) and is_value):
            raise HTTPException(400, "after is not a place in the list of runs: begin at its first page.")
        after = (heading, value, name)
        return next((at for at, job in enumerate(self.jobs) if self._follows(job, after)), len(self.jobs))

    def _follows(self, job: Job, after: tuple[str, Value, str]) -> bool:
        heading, value, name = after
        here = self.headings.get(job.name, ""), self.values[job.name]
        if here[0] != heading:
            return here[0] > heading
        if here[1] == value:
            return job.name > name
        if here[1] is None or value is None:
            return here[1] is None
        return (_order(here[1]) > _order(value)) == self.up


def _order(value: Value) -> tuple[int, float, str]:
    return (0, value, "") if isinstance(value, float) else (1, 0.0, value or "")


def _value(job: Job, sort: str, known: Mapping[str, RunSummary], summaries: Summaries) -> Value:
    if sort == "changed":
        return job.changed_at()
    if sort == "name":
        return job.name
    if sort in ("state", *_FIGURES):
        return _sortable(getattr(known[job.name], sort))
    return _sortable(summaries.value(job, sort))


def _sortable(value: object) -> Value:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return float(value) if is_number(value) else str(value)


def _heading(job: Job, key: str, summaries: Summaries) -> str:
    """Return the group's heading: the folder, or the value of a configuration key."""
    if key == "folder":
        return job.name.rpartition("/")[0] or "(the studio's folder)"
    value = summaries.value(job, key)
    return f"{key} = {'–' if value is None else value}"


def _cells(configuration: Mapping[str, object], columns: Sequence[str]) -> list[tuple[str, str]]:
    """Return (key, text) of the chosen columns; secrets are hidden already."""
    return [(key, str(configuration.get(key, "–"))) for key in columns]


def _differing(configurations: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the keys that tell the shown runs apart, those of the run's own place and name left out."""
    keys = dict.fromkeys(key for found in configurations for key in found)
    differing = [key for key in keys if len({repr(found.get(key)) for found in configurations}) > 1]
    return sorted(differing)[:_OFFERED]
