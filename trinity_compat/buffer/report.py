"""Reports on a buffer, and the removal of texts: the work of ``trinity-compat buffer``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from trinity_compat.buffer import groups, media, queries
from trinity_compat.buffer.groups import Columns, Row
from trinity_compat.buffer.model import Experience, Group
from trinity_compat.buffer.queries import query
from trinity_compat.buffer.reading import open_for_reading, open_for_writing
from trinity_compat.buffer.retention import Droppable, TextRetention, last_trained
from trinity_compat.buffer.typed_json import readable
from trinity_compat.common.errors import UserError

_SHOWN = (
    "group_id",
    "key",
    "task_no",
    "state",
    "explorer_step",
    "min_model_version",
    "max_model_version",
    "use_count",
    "task",
)


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of a buffer.

    ``states``: kind → state → groups. ``lag``: model-version lag of a use (trainer step − 1 − oldest version)
    → uses. ``used_twice`` is 0 unless the guarantee of one use is broken.
    """

    url: str
    schema: int
    history: int
    nbytes: int
    experiences: int
    states: Mapping[str, Mapping[str, int]]
    mean_reward: float | None
    latest_version: int | None
    ledger_uses: int
    ledger_steps: int
    last_step: int | None
    lag: Mapping[int, int]
    used_twice: int


@dataclass(frozen=True, slots=True)
class PruneResult:
    """Number of experiences that lost texts and tokens, and bytes by which the file shrank."""

    experiences: int
    nbytes: int


class BufferReport:
    """Reports on an existing buffer, and ``prune``. Raises UserError where there is no buffer."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._db = open_for_reading(url)

    def stats(self) -> Stats:
        """Counts over the whole buffer: seconds at millions of rows."""

        def work(conn: sa.Connection) -> Stats:
            states: dict[str, dict[str, int]] = {}
            for kind, state, count in rows(conn, queries.STATES):
                states.setdefault(kind, {})[state] = count
            uses, steps, last = rows(conn, queries.LEDGER_TOTALS)[0]
            return Stats(
                url=self._db.name,
                schema=one(conn, queries.SCHEMA),
                history=one(conn, queries.HISTORY),
                nbytes=one(conn, queries.size_of(self._db.dialect)),
                experiences=one(conn, queries.COUNT_EXPERIENCES),
                states=states,
                mean_reward=one(conn, queries.MEAN_REWARD),
                latest_version=one(conn, queries.LATEST_VERSION),
                ledger_uses=uses,
                ledger_steps=steps,
                last_step=last,
                lag={row[0]: row[1] for row in rows(conn, queries.LAG)},
                used_twice=one(conn, queries.USED_TWICE),
            )

        return self._db.run(work, write=False)

    def recent(self, limit: int, *, kind: str = "train", state: str = "") -> list[dict[str, Any]]:
        """The newest groups, newest first, with their responses, as JSON objects.

        ``state`` "" is any state. Raises UserError for a kind without groups.
        """
        bind = {"kind": kind, "state": state, "limit": limit}

        def work(conn: sa.Connection) -> list[dict[str, Any]]:
            found = rows(conn, queries.RECENT, bind)
            if not found:
                kinds = dict.fromkeys(row[0] for row in rows(conn, queries.STATES))
                if kinds and kind not in kinds:
                    raise UserError(f"no groups of kind {kind!r}", hint=f"there are {', '.join(kinds)}")
            return [_shown(row, rows(conn, queries.ONE_GROUP, {"group_id": row[0]})) for row in found]

        return self._db.run(work, write=False)

    def newest_group(self, task_no: int, kind: str = "train") -> Group | None:
        """The newest group of a task that is not void or stale, with the content of its images.

        ``kind``: an SQL pattern, such as ``eval:%``. Texts and tokens of a pruned group are empty.
        """

        def work(conn: sa.Connection) -> Group | None:
            found = rows(conn, queries.NEWEST_OF_TASK, {"task_no": task_no, "kind": kind})
            if not found:
                return None
            bind = {"group_id": found[0][0]}
            (group,) = groups.assemble(found, rows(conn, queries.ONE_GROUP, bind))
            data = {digest: bytes(content) for digest, content in rows(conn, queries.MEDIA_OF_GROUP, bind)}
            return replace(group, task=media.filled(group.task, data)) if data else group

        return self._db.run(work, write=False)

    def export(self, *, page: int = 512) -> Iterator[Columns]:
        """Every experience that isn't pruned, in order of id, as one JSON object each."""
        arrays = ("prompt_ids", "response_ids", "response_mask", "logprobs")
        versions = ("min_model_version", "max_model_version")
        after_id = 0
        while rows := self._page(after_id, page):
            for group_id, number, experience in rows:
                yield {
                    "experience_id": number,
                    "group_id": group_id,
                    **_text(experience),
                    **{name: getattr(experience, name) for name in versions},
                    **{name: getattr(experience, name).tolist() for name in arrays},
                }
            last = rows[-1][1]
            if last <= after_id:
                raise UserError(f"{self._db.name} is damaged: its answers are in no order")
            after_id = last

    def _page(self, after_id: int, limit: int) -> Sequence[tuple[int, int, Experience]]:
        bind = {"after_id": after_id, "limit": limit}

        def work(conn: sa.Connection) -> Sequence[tuple[int, int, Experience]]:
            found = rows(conn, queries.EXPERIENCES, bind)
            return [(row[0], row[1], groups.experience(row, readable)) for row in found]

        return self._db.run(work, write=False)

    def prune(self, *, keep_steps: int) -> PruneResult:
        """Delete texts and tokens of old groups, in small transactions beside a live run.

        These are groups last trained ``keep_steps`` trainer steps ago or earlier, evaluations as old, void
        and stale groups, and images that no other task has. Rewards, versions and the ledger stay. A later
        resume from before the pruned steps generates their groups again. Raises UserError where the database
        cannot be written.
        """
        last = self._db.run(last_trained, write=False)
        with closing(open_for_writing(self._url)) as db:
            retention = TextRetention(db)
            dropped = retention.drop(Droppable(last - keep_steps))
            return PruneResult(dropped, retention.give_back())

    def close(self) -> None:
        """Give the connections back."""
        self._db.close()


def rows(conn: sa.Connection, statement: str, bind: Mapping[str, object] | None = None) -> Sequence[Row]:
    """Return the rows of a statement of ``queries``."""
    return conn.execute(query(statement), dict(bind or {})).all()


def one(conn: sa.Connection, statement: str) -> Any:
    """Return the first value of a statement of ``queries``; None without a row."""
    found = rows(conn, statement)
    return found[0][0] if found else None


def _shown(row: Row, members: Sequence[Row]) -> dict[str, Any]:
    shown = dict(zip(_SHOWN, row, strict=True))
    shown["task"] = readable(shown["task"])
    shown["responses"] = [_response(member) for member in members]
    return shown


def _response(member: Row) -> Columns:
    response = _text(groups.experience(member, readable))
    return response if member[-1] is None else response | {"tokens": member[-1]}


def _text(experience: Experience) -> Columns:
    names = ("run", "reward", "prompt_text", "response_text", "num_turns", "metrics", "info")
    return {name: getattr(experience, name) for name in names} | {"tokens": len(experience.response_ids)}
