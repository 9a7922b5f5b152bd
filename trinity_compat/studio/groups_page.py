"""The groups of a step: how its rewards are distributed, and each group's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trinity_compat.buffer import queries
from trinity_compat.buffer.queries import of_ids
from trinity_compat.studio import group_index
from trinity_compat.studio.experiences import index_of
from trinity_compat.studio.group_index import BOUNDS, OUTCOMES, PAGE, RIGHT, SORTS, GroupQuery, RewardBar
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.pages import (
    bounds_of,
    finite_number,
    job_of,
    page,
    place_of,
    reading,
    whole_number,
)

_TITLES = {
    "mean": "Mean",
    "spread": "Spread",
    "advantage": "Best advantage",
    "truncated": "Truncated",
    "version": "Version",
    "tools": "Tool calls",
    "turns": "Turns",
}
_PLACES = ("id", "after")  # of an address: not of the selection
_WIDTH, _HEIGHT = 640.0, 120.0  # of the drawing


@reading
def groups(request: Request) -> Response:
    """Show the groups of one step, the newest if the address names none; or of all steps."""
    job, given = job_of(request), request.query_params
    index, done, last = index_of(job)
    wanted = group_query(given)
    with index.connected() as db:
        if not given.get("step", "").strip():
            newest = group_index.steps(db, wanted.kind, None)[2]
            given = _with(given, step="all" if newest is None else str(newest))
            wanted = group_query(given)
        rows = group_index.page(db, wanted)
        around = group_index.steps(db, wanted.kind, wanted.step)
        bars, rewards = (
            ([], 0) if wanted.step is None else group_index.distribution(db, wanted.kind, wanted.step)
        )
        counts = group_index.outcomes(db, wanted)
    shown, more = rows[:PAGE], len(rows) > PAGE
    bounds = [f"{name}_{end}" for name in BOUNDS for end in ("min", "max")]
    states = _states(job, [int(str(row["id"])) for row in shown])
    after = f"{shown[-1][SORTS[wanted.sort]]},{shown[-1]['id']}" if more else ""
    values = {
        "job": job,
        "rows": [row | {"state": states.get(int(str(row["id"])), "gone")} for row in shown],
        "wanted": wanted,
        "kinds": index.kinds() or ["train"],
        "titles": _TITLES,
        "sorts": list(SORTS),
        "given": {name: given.get(name, "") for name in ("task", *bounds)},
        "bounded": bool(wanted.least or wanted.most),
        "bars": _drawn(bars),
        "rewards": rewards,
        "partial": rewards == group_index.MOST_REWARDS,
        "counts": counts,
        "earlier": _address(given, step=str(around[0])) if around[0] is not None else "",
        "later": _address(given, step=str(around[1])) if around[1] is not None else "",
        "by_outcome": {name: _address(given, outcome=name) for name in ("", *OUTCOMES)},
        "all_steps": _address(given, step="all"),
        "next": _address(given, after=after) if after else "",
        "first": _address(given) if wanted.after else "",
        "selection": selection_of(given),
        "indexing": (done, last) if done < last else None,
    }
    return page(request, "groups.html", values)


def group_query(given: QueryParams) -> GroupQuery:
    """The selection that an address names. Raises HTTPException 400 for a value that is not valid."""
    least, most = bounds_of(given, BOUNDS)
    sort, outcome = given.get("sort") or "newest", given.get("outcome", "")
    if sort not in SORTS:
        raise HTTPException(400, f"sort is one of {', '.join(SORTS)}.")
    if outcome and outcome not in OUTCOMES:
        raise HTTPException(400, f"outcome is one of {', '.join(OUTCOMES)}, or empty.")
    step, right = given.get("step", "").strip(), given.get("right", "").strip()
    return GroupQuery(
        given.get("kind") or "train",
        whole_number(step, "step") if step and step != "all" else None,
        given.get("task", "").strip(),
        outcome,
        finite_number(right, "right") if right else RIGHT,
        least,
        most,
        sort,
        "up" in given,
        place_of(given),
    )


def selection_of(given: QueryParams) -> str:
    """Return the part of an address that names a selection: all but a place in it."""
    return urlencode([pair for pair in given.multi_items() if pair[0] not in _PLACES and pair[1]])


def _with(given: QueryParams, **changes: str) -> QueryParams:
    pairs = [(name, text) for name, text in given.multi_items() if name not in changes]
    return QueryParams([*pairs, *changes.items()])


def _address(given: QueryParams, **changes: str) -> str:
    """Return the address of the selection with other values, from its first page unless ``after`` is one."""
    kept = QueryParams([pair for pair in given.multi_items() if pair[0] not in _PLACES])
    return "?" + urlencode([pair for pair in _with(kept, **changes).multi_items() if pair[1]])


def _states(job: Job, ids: Sequence[int]) -> dict[int, str]:
    if not ids:
        return {}
    chosen = of_ids(queries.GROUP_STATES)
    found = job.database().run(lambda conn: conn.execute(chosen, {"ids": ids}).all(), write=False)
    return {row[0]: row[1] for row in found}


def _drawn(bars: Sequence[RewardBar]) -> list[Mapping[str, object]]:
    """Return each bar with its place in a drawing of 640 × 120."""
    most = max((bar.count for bar in bars), default=1)
    wide = _WIDTH / max(len(bars), 6)
    return [
        {
            "bar": bar,
            "x": round(place * wide + wide * 0.06, 2),
            "middle": round((place + 0.5) * wide, 2),
            "width": round(wide * 0.88, 2),
            "y": round(_HEIGHT - bar.count / most * _HEIGHT, 2),
            "height": round(bar.count / most * _HEIGHT, 2),
        }
        for place, bar in enumerate(bars)
    ]
