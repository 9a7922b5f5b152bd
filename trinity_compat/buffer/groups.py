"""Writing and reading groups inside a transaction that the caller opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from trinity_compat.buffer import codec, media, queries, typed_json
from trinity_compat.buffer.errors import InvalidGroup
from trinity_compat.buffer.model import Experience, Group
from trinity_compat.buffer.queries import query
from trinity_compat.buffer.row_fields import simple
from trinity_compat.common.crash_points import point

Row = Sequence[Any]  # a driver's row; each reader has its own columns
Columns = dict[str, object]


def group_values(group: Group) -> Columns:
    """Column values of one group. Raises InvalidGroup for an empty or misshapen one."""
    index, source = group.task.get("index"), group.task.get("data_source")
    who = f"group {group.key!r} (index {index!r:.60} of {source!r:.60})"
    if not group.experiences:
        raise InvalidGroup(f"{who} has no experiences")
    for experience in group.experiences:
        codec.check(experience, who)
    try:
        task = typed_json.dumps(group.task)
    except TypeError as error:
        raise InvalidGroup(f"{who}: {error} cannot be stored") from error
    return {
        "key": group.key,
        "kind": group.kind,
        "task_no": group.task_no,
        "task": task,
        "explorer_step": group.explorer_step,
        "priority": group.priority,
        "size": len(group.experiences),
        "min_model_version": min(e.min_model_version for e in group.experiences),
        "max_model_version": max(e.max_model_version for e in group.experiences),
    }


def experience_values(experience: Experience) -> Columns:
    """Column values of one experience, all but its group."""
    return {
        "run": experience.run,
        "reward": float(experience.reward),
        "min_model_version": experience.min_model_version,
        "max_model_version": experience.max_model_version,
        "num_turns": experience.num_turns,
        "metrics": codec.metrics_json(experience.metrics, "an experience"),
        "info": typed_json.dumps(simple(experience.info)),
        "prompt_text": codec.to_text(experience.prompt_text),
        "response_text": codec.to_text(experience.response_text),
        "prompt_ids": codec.pack_ints(experience.prompt_ids),
        "response_ids": codec.pack_ints(experience.response_ids),
        "response_mask": codec.pack_mask(experience.response_mask),
        "logprobs": codec.pack_floats(experience.logprobs),
        "teacher_ids": codec.packed(codec.pack_ints, experience.teacher_ids),
        "teacher_logprobs": codec.packed(codec.pack_floats, experience.teacher_logprobs),
    }


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """Column values of a group, its experiences and its media."""

    group: Columns
    experiences: list[Columns]
    media: list[Columns]


def prepare(groups: Iterable[Group]) -> list[PreparedRows]:
    """Encode groups before the transaction takes the write lock."""
    return [
        PreparedRows(group_values(g), [experience_values(e) for e in g.experiences], media_values(g))
        for g in groups
    ]


def media_values(group: Group) -> list[Columns]:
    """Column values of each distinct image or other piece of bytes in a group's task."""
    by_digest = {each.digest: each.data for each in media.found(group.task)}
    return [{"digest": digest, "data": data} for digest, data in by_digest.items()]


def insert(conn: sa.Connection, prepared: Sequence[PreparedRows], *, history: int, now: float) -> int:
    """Insert groups whose keys are not live; returns their number."""
    new = 0
    rows: list[Columns] = []
    held: list[Columns] = []
    for each in prepared:
        values = {**each.group, "history": history, "now": now}
        group_id = conn.execute(query(queries.PUT_GROUP), values).scalar_one_or_none()
        if group_id is None:
            continue
        new += 1
        rows.extend({**experience, "group_id": group_id} for experience in each.experiences)
        held.extend({**piece, "group_id": group_id} for piece in each.media)
    if held:
        held.sort(key=lambda piece: str(piece["digest"]))  # two writers of the same ones wait in one order
        conn.execute(query(queries.PUT_MEDIA), held)
        conn.execute(query(queries.HOLD_MEDIA), held)
    if rows:
        conn.execute(query(queries.PUT_EXPERIENCES), rows)
        point("inside insert")
    return new


def settle(conn: sa.Connection, kept: Sequence[Group], *, drawn: str) -> bool:
    """End a drawing; False if it was ended before."""
    rows = [{"id": g.group_id, "task_no": g.task_no, "key": g.key, "drawn": drawn} for g in kept]
    if not sum(conn.execute(query(queries.KEEP_DRAWN), row).rowcount for row in rows):
        return False
    conn.execute(query(queries.DROP_DRAWN), {"drawn": drawn})
    point("inside settle")
    return True


def experience(row: Row, read: Callable[[str], Any] = typed_json.loads) -> Experience:
    """Decode one row of ``queries._EXPERIENCE``.

    The arrays are read-only views of the driver's bytes; arrays and texts of a pruned experience are empty.
    ``read`` decodes ``info``; ``typed_json.readable`` serves reports. Raises typed_json.Unreadable.
    """
    response = codec.unpack_ints(row[4] or b"")
    return Experience(
        run=row[2],
        prompt_ids=codec.unpack_ints(row[3] or b""),
        response_ids=response,
        response_mask=codec.unpack_mask(row[5], len(response)),
        logprobs=codec.unpack_floats(row[6] or b""),
        reward=row[7],
        min_model_version=row[8],
        max_model_version=row[9],
        prompt_text=row[10] or "",
        response_text=row[11] or "",
        num_turns=row[12],
        metrics=codec.numbers(row[13]),
        info=read(row[14]),
    )


def claimed_experience(row: Row) -> Experience:
    """Decode one row of ``queries.CLAIMED_EXPERIENCES``: an experience with the arrays of its teacher."""
    found, (ids, logprobs) = experience(row), row[15:]
    length = len(found.response_ids)
    return replace(
        found,
        teacher_ids=None if ids is None else codec.as_rows(codec.unpack_ints(ids), length),
        teacher_logprobs=None if logprobs is None else codec.as_rows(codec.unpack_floats(logprobs), length),
    )


def assemble(
    groups: Iterable[Row],
    experiences: Iterable[Row],
    decode: Callable[[Row], Experience] = experience,
) -> tuple[Group, ...]:
    """Groups in the order of their rows, each with its experiences in order of ``run``."""
    members: dict[int, list[Experience]] = {}
    for row in experiences:
        members.setdefault(row[0], []).append(decode(row))
    return tuple(
        Group(
            group_id=row[0],
            key=row[1],
            task_no=row[2],
            task=typed_json.loads(row[3]),
            explorer_step=row[4],
            kind=row[5],
            priority=row[6],
            uses=row[7],
            experiences=tuple(members.get(row[0], ())),
        )
        for row in groups
    )
