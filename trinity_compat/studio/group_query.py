"""The selection of groups that an address names."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from trinity_compat.studio.group_index import BOUNDS, OUTCOMES, RIGHT, SORTS, GroupQuery
from trinity_compat.studio.pages import bounds_of, finite_number, place_of, whole_number

PLACES = ("id", "after")  # of an address: not of the selection


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
    return urlencode([pair for pair in given.multi_items() if pair[0] not in PLACES and pair[1]])
