"""The runs that a form offers to choose from: filtered as the list of runs, a page at a time."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from starlette.requests import Request

from trinity_compat.studio.baselines import Baseline
from trinity_compat.studio.pages import studio_of
from trinity_compat.studio.run_state import RunSummary
from trinity_compat.studio.runs_page import PAGE, SORTS, ChosenRuns, RunsQuery


@dataclass(frozen=True, slots=True)
class RunChoice:
    """One page of the runs of a query, behind those that are chosen already.

    ``first`` of ``count`` runs stand on the pages before; ``next``: the place where the next page begins.
    """

    query: RunsQuery
    chosen: Sequence[RunSummary]
    rows: Sequence[RunSummary]
    first: int
    shown: int
    count: int
    next: str
    unread: int
    baselines: Sequence[Baseline]
    more_baselines: int

    @property
    def sorts(self) -> Sequence[str]:
        """The orders that the form offers."""
        return SORTS


def run_choice(request: Request, chosen: Collection[str]) -> RunChoice:
    """Return the page that an address names. Raises HTTPException 400 for a value that is not valid.

    A run or baseline whose name is in ``chosen`` is on each page.
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
    baselines, more = _baselines(request, query, chosen)
    return RunChoice(
        query=query,
        chosen=[rows[job.name] for job in before],
        rows=[rows[job.name] for job in jobs if job.name not in chosen],
        first=first,
        shown=len(jobs),
        count=len(found.jobs),
        next=found.place(jobs[-1]) if first + PAGE < len(found.jobs) else "",
        unread=found.unread,
        baselines=baselines,
        more_baselines=more,
    )


def _baselines(request: Request, query: RunsQuery, chosen: Collection[str]) -> tuple[Sequence[Baseline], int]:
    """Return the chosen baselines and the first ones whose name has the query's words; how many are left."""
    words = query.words.casefold().split()
    everything = studio_of(request).comparisons.baselines.all().values()
    others = [one for one in everything if all(word in one.label.casefold() for word in words)]
    others = [one for one in others if one.name not in chosen]
    return [*(one for one in everything if one.name in chosen), *others[:PAGE]], max(0, len(others) - PAGE)
