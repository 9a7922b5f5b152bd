"""Restarts of a run and their costs: steps trained again, seconds, groups thrown away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from trinity_compat.buffer import queries
from trinity_compat.buffer.report import Row, rows
from trinity_compat.report.model import Section, counted


def restarts(conn: sa.Connection) -> Section:
    """Return the section on restarts of the trainer."""
    found = list(restarts_of(rows(conn, queries.HISTORIES), rows(conn, queries.ENTRIES)))
    again, thrown = sum(each["steps_again"] for each in found), [each["groups_thrown_away"] for each in found]
    seconds = sum(each["idle_s"] + each["again_s"] for each in found)
    cost = (
        f"{counted(again, 'step')} trained again, {seconds:.0f} s,"
        f" {counted(sum(filter(None, thrown)), 'group')} thrown away"
    )
    return Section(
        "Restarts",
        "proven",
        f"{counted(len(found), 'restart')}: {cost}" if found else "the trainer was not restarted",
        {"steps_again": again, "seconds": seconds, "restarts": found},
        ["groups that a restart of an earlier release threw away"] if None in thrown else [],
    )


def restarts_of(histories: Sequence[Row], entries: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield the restarts of ``queries.HISTORIES`` and ``queries.ENTRIES``.

    ``was_at``: the last step before. ``idle_s``: from there until the trainer continued, while nothing was
    started included; ``again_s``: until the run was as far as before, or was stopped again. A start from
    another run's checkpoint, before any step of this one, is none.
    """
    ends = [at for _, _, at, _ in histories[2:]] + [float("inf")]
    for (history, from_step, at, voided), end in zip(histories[1:], ends, strict=False):
        before = [row for row in entries if row[0] < history]
        if not before and from_step:
            continue
        # Steps that an earlier restart took back are not lost a second time.
        was_at = max((step for _, step, taken, _ in before if taken is None or taken >= history), default=0)
        redone = len({step for _, step, taken, _ in before if taken == history})
        since = [(step, entered) for of, step, _, entered in entries if of >= history and entered < end]
        there = [entered for step, entered in since if step >= was_at] or [max([at, *(e for _, e in since)])]
        yield {
            "at": datetime.fromtimestamp(at, UTC).isoformat(" ", "seconds"),
            "was_at": was_at,
            "from_step": from_step,
            "steps_again": redone,
            "idle_s": max(0.0, at - max((entered for *_, entered in before), default=at)),
            "again_s": max(0.0, min(there) - at) if redone else 0.0,
            "groups_thrown_away": voided,
        }
