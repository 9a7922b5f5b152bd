"""The groups of a step: how its rewards are distributed, and each group's figures."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trinity_compat.buffer import queries
from trinity_compat.buffer.queries import of_ids
from trinity_compat.buffer.typed_json import readable
from trinity_compat.common.nested import value_at
from trinity_compat.common.redaction import hidden
from trinity_compat.studio import group_index
from trinity_compat.studio.experiences import index_of
from trinity_compat.studio.group_index import (
    BOUNDS,
    OUTCOMES,
    PAGE,
    RIGHT,
    SORTS,
    GroupQuery,
    RewardBar,
    RewardScale,
)
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
    "mean": "Mean reward",
    "spread": "Spread",
    "advantage": "(best − mean) / standard deviation",
    "truncated": "Truncated",
    "version": "Version",
    "tools": "Tool calls",
    "turns": "Turns",
}
_PLACES = ("id", "after", "a", "b")  # of an address: not of the selection
_WIDTH, _HEIGHT = 360.0, 50.0  # of the drawing
_MOST_CELLS = 64  # of a strip of rewards
_MOST_CHANGES = 200  # tasks of a list
_LONGEST = 300  # characters of a text in a row


@reading
def groups(request: Request) -> Response:
    """Show the groups of one step, the newest if the address names none; or of all steps."""
    job, given = job_of(request), request.query_params
    index, done, last = index_of(job)
    with index.connected() as db:
        known = index.kinds() or ["train"]
        validations = group_index.validations(db, known)
        if given.get("kind") == "eval":  # a validation by its step
            at = [kind for step, kind in validations if given.get("step", "") in ("", "all", str(step))]
            given = _with(given, kind=at[-1] if at else "train")
        own = next((str(step) for step, kind in validations if kind == given.get("kind")), "")
        if own and given.get("step") != "all":
            given = _with(given, step=own)
        wanted = group_query(given)
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
        scale = group_index.scale(db, wanted.kind)
        shown, more = _rows(job, db, rows[:PAGE], scale), len(rows) > PAGE
        changes = _changes(db, given, wanted, validations)
    bounds = [f"{name}_{end}" for name in BOUNDS for end in ("min", "max")]
    after = f"{shown[-1][SORTS[wanted.sort]]},{shown[-1]['id']}" if more else ""
    values = {
        "job": job,
        "rows": shown,
        "wanted": wanted,
        "scale": scale,
        "kinds": group_index.titles(known, validations),
        "changes": changes,
        "titles": _TITLES,
        "sorts": {name: _sorted(given, wanted, name) for name in SORTS},
        "given": {name: given.get(name, "") for name in ("task", *bounds)},
        "bounded": bool(wanted.least or wanted.most),
        "bars": _drawn(bars, scale),
        "rewards": rewards,
        "partial": rewards == group_index.MOST_REWARDS,
        "counts": counts,
        **_beside(given, wanted, around, validations),
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
    step, right = given.get("step", "").strip(), given.get("right", "").strip()
    # Of one step the worst groups come first.
    of_step = step not in ("", "all")
    sort, outcome = given.get("sort") or ("mean" if of_step else "newest"), given.get("outcome", "")
    if sort not in SORTS:
        raise HTTPException(400, f"sort is one of {', '.join(SORTS)}.")
    if outcome and outcome not in OUTCOMES:
        raise HTTPException(400, f"outcome is one of {', '.join(OUTCOMES)}, or empty.")
    return GroupQuery(
        given.get("kind") or "train",
        whole_number(step, "step") if of_step else None,
        given.get("task", "").strip(),
        outcome,
        finite_number(right, "right") if right else RIGHT,
        least,
        most,
        sort,
        "up" in given or (of_step and not given.get("sort")),
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


def _beside(
    given: QueryParams,
    wanted: GroupQuery,
    around: Sequence[int | None],
    validations: Sequence[tuple[int, str]],
) -> Mapping[str, str]:
    """Return the addresses of the step, or validation, before and after the selection's."""
    place = next((place for place, each in enumerate(validations) if each[1] == wanted.kind), None)
    if place is None:
        ends = [{} if step is None else {"step": str(step)} for step in around[:2]]
    else:
        near = [validations[place - 1 : place] if place else [], validations[place + 1 : place + 2]]
        ends = [{"step": str(each[0][0]), "kind": each[0][1]} if each else {} for each in near]
    return {
        name: _address(given, **end) if end else ""
        for name, end in zip(("earlier", "later"), ends, strict=True)
    }


def _changes(
    db: sqlite3.Connection, given: QueryParams, wanted: GroupQuery, validations: Sequence[tuple[int, str]]
) -> Mapping[str, object] | None:
    """Return the tasks of a validation that differ from those of ``since``, by default the one before it."""
    kinds = [kind for _, kind in validations]
    if wanted.kind not in kinds or len(kinds) < 2:
        return None
    others = [kind for kind in kinds if kind != wanted.kind]
    place = kinds.index(wanted.kind)
    since = given.get("since", kinds[place - 1] if place else "")
    since = since if since in others else ""
    both = group_index.changes(db, since, wanted.kind, wanted.right) if since else ((), ())
    lists = list(zip(("newly solved", "newly failed"), both, strict=True))
    return {"since": since, "others": others, "lists": lists, "most": _MOST_CHANGES}


def _sorted(given: QueryParams, wanted: GroupQuery, sort: str) -> str:
    """Return the address in that order; of the present one in the opposite direction."""
    given = QueryParams([pair for pair in given.multi_items() if pair[0] != "up"])
    up = {"up": "on"} if sort == wanted.sort and not wanted.up else {}
    return _address(given, sort=sort, **up)


def _rows(
    job: Job, db: sqlite3.Connection, rows: Sequence[dict[str, object]], scale: RewardScale
) -> list[Mapping[str, object]]:
    """Return the groups with their state, task, strip of rewards, best and worst answer."""
    ids = [int(str(row["id"])) for row in rows]
    if not ids:
        return []
    rewards = group_index.rewards(db, ids)
    ends = [each[place][1] for each in rewards.values() if each for place in (0, -1)]

    def read(statement: str, ids: Sequence[int]) -> dict[int, Sequence[str]]:
        found = job.database().run(
            lambda conn: conn.execute(of_ids(statement), {"ids": ids}).all(), write=False
        )
        return {row[0]: row[1:] for row in found}

    groups, texts = read(queries.GROUP_ROWS, ids), read(queries.ENDS, ends)

    def answer(pair: tuple[float | None, int]) -> Mapping[str, object]:
        text = str((texts.get(pair[1]) or ("",))[0] or "(pruned)")
        return {
            "reward": pair[0],
            "id": pair[1],
            "text": f"…{text[-_LONGEST:]}" if len(text) > _LONGEST else text,
        }

    made: list[Mapping[str, object]] = []
    for row, number in zip(rows, ids, strict=True):
        state, text = groups.get(number) or ("gone", None)
        task, own = hidden("", readable(text or "{}")), rewards[number]
        truth = value_at(task, "reward_model.ground_truth")
        made.append(
            row
            | {
                "state": state,
                "prompt": shortened(asked(task)),
                "truth": None if truth is None else shortened(str(truth)),
                "strip": strip([reward for reward, _ in own], scale),
                "ends": [answer(own[0]), answer(own[-1])] if row["low"] != row["high"] else [answer(own[0])],
            }
        )
    return made


def asked(task: object) -> str:
    """Return the last message of a dataset row's prompt."""
    prompt = value_at(task, "raw_prompt")
    last = prompt[-1] if isinstance(prompt, list) and prompt else prompt
    content = last.get("content") if isinstance(last, Mapping) else last
    if isinstance(content, list):  # parts: texts and images
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content or "")


def shortened(text: str) -> str:
    """Return the beginning of a text for a row."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def strip(rewards: Sequence[float | None], scale: RewardScale) -> list[tuple[int, float, str]]:
    """Return (x, height, colour's class) of each reward's bar; of many rewards a sample evenly apart."""
    if len(rewards) > _MOST_CELLS:
        rewards = [rewards[place * (len(rewards) - 1) // (_MOST_CELLS - 1)] for place in range(_MOST_CELLS)]
    return [
        (6 * place, round(3 + 15 * (scale.share(reward) or 0.0), 1), scale.shade(reward))
        for place, reward in enumerate(rewards)
    ]


def _drawn(bars: Sequence[RewardBar], scale: RewardScale) -> list[Mapping[str, object]]:
    """Return each bar with its colour and its place in a drawing of 360 × 50."""
    most = max((bar.count for bar in bars), default=1)
    wide = _WIDTH / max(len(bars), 6)
    return [
        {
            "bar": bar,
            "shade": scale.shade(bar.low / 2 + bar.high / 2),
            "x": round(place * wide + wide * 0.06, 2),
            "middle": round((place + 0.5) * wide, 2),
            "width": round(wide * 0.88, 2),
            "y": round(_HEIGHT - bar.count / most * _HEIGHT, 2),
            "height": round(bar.count / most * _HEIGHT, 2),
        }
        for place, bar in enumerate(bars)
    ]
