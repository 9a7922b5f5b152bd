"""The side index of one job's experiences: ``studio.db`` in its folder, for search and sorting.

For a job that is not the user's own, or not writable, it lies in the user's cache.

Filled from the newest id down, a batch at a time, each batch one short read of the job's database. What is
indexed never changes (a resume adds, it doesn't rewrite). Texts are not copied: the search index holds none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from trinity_compat.buffer import queries
from trinity_compat.buffer.errors import BufferError
from trinity_compat.buffer.model import TRUNCATED
from trinity_compat.buffer.queries import query
from trinity_compat.buffer.typed_json import readable
from trinity_compat.common.errors import UserError, Where
from trinity_compat.studio import group_index
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.private_files import cache_folder, keep_private

_BATCH, _BATCH_BYTES = 1000, 64 << 20  # experiences, and of their texts and masks
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, group_id INTEGER, run INTEGER, kind TEXT,
    step INTEGER, task TEXT, reward REAL, version INTEGER, length INTEGER, turns INTEGER,
    truncated INTEGER, tools INTEGER, first_version INTEGER);
CREATE INDEX IF NOT EXISTS by_kind ON rows (kind, id);
CREATE INDEX IF NOT EXISTS by_step ON rows (kind, step, id);
CREATE INDEX IF NOT EXISTS by_task ON rows (kind, task, id);
CREATE INDEX IF NOT EXISTS by_reward ON rows (kind, reward, id);
CREATE INDEX IF NOT EXISTS by_version ON rows (kind, version, id);
CREATE INDEX IF NOT EXISTS by_length ON rows (kind, length, id);
CREATE INDEX IF NOT EXISTS by_group ON rows (group_id);
CREATE VIRTUAL TABLE IF NOT EXISTS texts USING fts5(prompt, response, content='', columnsize=0);
CREATE TABLE IF NOT EXISTS gaps (below INTEGER, last INTEGER PRIMARY KEY);
"""
_LAYOUT = "3"  # of the tables above
_DROP = """DROP TABLE IF EXISTS texts; DROP TABLE IF EXISTS rows; DROP TABLE IF EXISTS groups;
DROP TABLE IF EXISTS gaps; DELETE FROM meta WHERE name = 'seen';"""
# SELECT DISTINCT would read every row: a step from one kind to the next instead.
_KINDS = """WITH RECURSIVE next(kind) AS (SELECT min(kind) FROM rows UNION ALL
    SELECT (SELECT min(kind) FROM rows WHERE kind > next.kind) FROM next WHERE next.kind IS NOT NULL)
SELECT kind FROM next WHERE kind IS NOT NULL"""
_HITS = "texts CROSS JOIN rows r ON r.id = texts.rowid"
_FEW = 2000  # rows
_WORD = re.compile(r'"([^"]*)"|(\S+)')
SORTS = {"newest": "id", "step": "step", "reward": "reward", "length": "length", "version": "version"}
PAGE = 30
Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class ExperienceQuery:
    """A selection. Bounds are inclusive; ``after`` is where the last page ended: (value of the sort, id)."""

    kind: str = "train"
    text: str = ""
    task: str = ""
    least: Mapping[str, float] = field(default_factory=dict)  # step, reward, version, length
    most: Mapping[str, float] = field(default_factory=dict)
    sort: str = "newest"
    up: bool = False
    after: tuple[float, int] | None = None


class Index:
    """``studio.db`` of one job. Raises UserError where it can't be written."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.path = _place(job)
        self._filling = threading.Lock()
        try:
            keep_private(self.path)
            self._begin()
        except OSError as error:
            raise UserError(f"{error.filename or self.path} {error.strerror}") from error
        except sqlite3.Error as error:
            raise UserError(
                f"{self.path} cannot be used: {error}", hint="remove this file; the studio makes a new one"
            ) from error

    def _begin(self) -> None:
        born = self.job.database().run(lambda c: c.execute(query(queries.FIRST_BIRTH)).scalar(), write=False)
        identity = "" if born is None else repr(born)
        with self.connected() as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT)")
            if db.execute("SELECT value FROM meta WHERE name = 'layout'").fetchone() != (_LAYOUT,):
                db.executescript(_DROP)
            db.executescript(_SCHEMA + group_index.SCHEMA)
            known = db.execute("SELECT value FROM meta WHERE name = 'of'").fetchone()
            if known and known[0] != identity:  # another run's database lies here now: other ids
                db.executescript(f"{_DROP} {_SCHEMA} {group_index.SCHEMA}")
            db.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)", [("of", identity), ("layout", _LAYOUT)]
            )

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        db = sqlite3.connect(self.path, timeout=10)
        try:
            db.execute("PRAGMA synchronous=NORMAL")
            with db:
                yield db
        finally:
            db.close()

    # -- filling --------------------------------------------------------------------------------

    def fill(self, seconds: float) -> tuple[int, int]:
        """Index what is new, for about so long; (ids that are done, last id). One thread fills at a time."""
        until = time.monotonic() + seconds
        newest = query(queries.LAST_EXPERIENCE)
        last = int(self.job.database().run(lambda conn: conn.execute(newest).scalar_one(), write=False))
        with self.connected() as db:
            if last > _seen(db):
                db.execute("BEGIN IMMEDIATE")
                if last > (below := _seen(db)):  # no other studio was faster
                    db.execute("INSERT INTO gaps VALUES (?, ?)", (below, last))
                    db.execute("INSERT OR REPLACE INTO meta VALUES ('seen', ?)", (str(last),))
        if self._filling.acquire(blocking=False):
            try:
                while time.monotonic() < until and self._batch():
                    pass
            finally:
                self._filling.release()
        with self.connected() as db:
            return last - sum(gap[1] - gap[0] for gap in db.execute("SELECT * FROM gaps")), last

    def fill_beside(self) -> None:
        """The rest in a thread of its own."""

        def fill() -> None:
            # What is wrong with the job's database, its pages say.
            with contextlib.suppress(UserError, BufferError, sqlite3.Error):
                self.fill(math.inf)

        threading.Thread(target=fill, daemon=True, name="studio-index").start()

    def _batch(self) -> bool:
        """Index a batch of the newest experiences that are not indexed yet; False where all are."""
        with self.connected() as db:
            gap = _newest_gap(db)
        if gap is None:
            return False
        database = self.job.database()
        bind = {"below": gap[0], "last": gap[1], "limit": _BATCH}

        def read(conn: sa.Connection) -> list[tuple[Sequence[object], tuple[object, ...]]]:
            rows: list[tuple[Sequence[object], tuple[object, ...]]] = []
            size = 0
            for row in conn.execute(query(queries.indexed_experiences(database.dialect)), bind):
                rows.append((row, _indexed(row)))
                size += sum(len(value) for value in row if isinstance(value, str | bytes))
                if size > _BATCH_BYTES:
                    break
            return rows

        # The full-text index takes ids in ascending order at once.
        found = database.run(read, write=False)[::-1]
        with self.connected() as db:
            db.execute("BEGIN IMMEDIATE")
            if _newest_gap(db) != gap:  # another studio was faster
                return True
            db.execute("DELETE FROM gaps WHERE last = ?", (gap[1],))
            rows = [indexed for _, indexed in found]
            if rows and (first := _whole(rows[0][0])) > gap[0] + 1:
                db.execute("INSERT INTO gaps VALUES (?, ?)", (gap[0], first - 1))
            try:
                db.executemany(f"INSERT INTO rows VALUES ({','.join('?' * 13)})", rows)
            except sqlite3.IntegrityError as error:
                raise UserError("is damaged: two answers have one id", where=Where(database.name)) from error
            group_index.keep(db, {_whole(row[1]) for row in rows})
            texts = ((row[0], row[-2] or "", row[-1] or "") for row, _ in found)
            db.executemany("INSERT INTO texts (rowid, prompt, response) VALUES (?,?,?)", texts)
        return True

    # -- asking ---------------------------------------------------------------------------------

    def count(self, wanted: ExperienceQuery, *, most: int) -> int:
        """Return how many rows the selection has, counted up to ``most``."""
        with self.connected() as db:
            source, where, values = _chosen(db, wanted)
            limited = f"SELECT 1 FROM {source} WHERE {' AND '.join(where)} LIMIT ?"
            return int(db.execute(f"SELECT count(*) FROM ({limited})", [*values, most]).fetchone()[0])

    def page(self, wanted: ExperienceQuery, *, limit: int = PAGE) -> list[Row]:
        """``limit`` rows of the selection in its order; one more, where there is a next page."""
        column = "id" if wanted.text else SORTS[wanted.sort]
        with self.connected() as db:
            db.row_factory = sqlite3.Row
            source, where, values = _chosen(db, wanted)
            if wanted.after is not None:
                where.append(f"(r.{column}, r.id) {'>' if wanted.up else '<'} (?, ?)")
                values += wanted.after
            order = "ASC" if wanted.up else "DESC"
            # Hits come in order of id by themselves: the first ones are enough.
            by = "texts.rowid" if wanted.text else f"r.{column} {order}, r.id"
            statement = f"""SELECT r.* FROM {source}
                WHERE {" AND ".join(where)} ORDER BY {by} {order} LIMIT ?"""
            return [dict(row) for row in db.execute(statement, [*values, limit + 1])]

    def kinds(self) -> list[str]:
        """``train`` first, then evaluations in their order."""
        with self.connected() as db:
            found = [row[0] for row in db.execute(_KINDS)]
        return sorted(found, key=lambda kind: (kind != "train", kind.partition(":")[0], len(kind), kind))

    def over_time(self, kind: str, task: str) -> list[Row]:
        """Return the newest groups of one task, oldest first."""
        with self.connected() as db:
            return group_index.over_time(db, kind, task)

    def newest_by_task(self, kind: str, *, among: int = 20_000) -> dict[str, tuple[int, float]]:
        """Task → (step, mean reward) of its newest group, of the newest ``among`` experiences."""
        statement = """SELECT task, max(step), avg(reward) FROM
            (SELECT task, step, group_id, reward FROM rows WHERE kind = ? ORDER BY id DESC LIMIT ?)
            GROUP BY group_id ORDER BY step"""
        with self.connected() as db:
            found = db.execute(statement, (kind, among))
            return {task: (step, mean) for task, step, mean in found if mean is not None}


def _chosen(db: sqlite3.Connection, wanted: ExperienceQuery) -> tuple[str, list[str], list[object]]:
    """Return a selection as SQL: its tables, conditions and their values."""
    where, values = _conditions(wanted)
    source = "rows r"
    if not wanted.text:
        return source, where, values
    where += [_among(db, source, where, values), "texts MATCH ?"]
    return _HITS, where, [*values, search_words(wanted.text)]


def _place(job: Job) -> Path:
    inside = job.dir.root / "studio.db"
    if not job.not_own() and os.access(job.dir.root, os.W_OK):
        return inside
    name = hashlib.sha256(os.fsencode(job.dir.root)).hexdigest()[:24]
    return cache_folder() / f"{name}.db"


def _among(db: sqlite3.Connection, source: str, where: Sequence[str], values: Sequence[object]) -> str:
    """Return a condition that limits a search to the rows within the bounds, if these are few.

    Then not every hit's row is read. For many rows it is ``1``, since hits within them are frequent.
    """
    statement = f"SELECT r.id FROM {source} WHERE {' AND '.join(where)} LIMIT {_FEW + 1}"
    ids = [row[0] for row in db.execute(statement, list(values))]
    if len(ids) > _FEW:
        return "1"
    first, last = min(ids, default=1), max(ids, default=0)
    # The + keeps SQLite from asking the full-text index for each of them, which begins anew each time.
    return f"texts.rowid BETWEEN {first} AND {last} AND +texts.rowid IN ({','.join(map(str, ids))})"


def _seen(db: sqlite3.Connection) -> int:
    found = db.execute("SELECT value FROM meta WHERE name = 'seen'").fetchone()
    return int(found[0]) if found else 0


def _newest_gap(db: sqlite3.Connection) -> tuple[int, int] | None:
    """Return (below, last): the ids above the one up to the other are not indexed yet."""
    found: tuple[int, int] | None = db.execute("SELECT * FROM gaps ORDER BY last DESC LIMIT 1").fetchone()
    return found


def _indexed(row: Sequence[object]) -> tuple[object, ...]:
    number, group, run, kind, step, task, task_no, reward, version, size, turns, metrics, mask, first, *_ = (
        row
    )
    value = float(str(reward))
    finite = value if math.isfinite(value) else None
    return (
        *map(_whole, (number, group, run)),
        kind,
        _whole(step),
        task_of(str(task), task_no),
        finite,
        _whole(version),
        _whole(size or 0) // 4,
        _whole(turns),
        # Nearly no answer has the metric: the text is enough to know that.
        int(TRUNCATED in str(metrics) and bool(json.loads(str(metrics)).get(TRUNCATED))),
        stretches(mask) if isinstance(mask, bytes | memoryview) else 0,
        _whole(first),
    )


def _whole(value: object) -> int:
    return int(str(value))


def stretches(mask: bytes | memoryview) -> int:
    """Return how many stretches of tokens the policy did not write: a tool's output, another's turn."""
    theirs = np.frombuffer(mask, np.uint8) == 0
    return int(theirs[:1].sum()) + int((theirs[1:] & ~theirs[:-1]).sum())


def task_of(task: str, task_no: object) -> str:
    """Return the identity of a task across epochs: its data source and row; else its number."""
    found = readable(task)
    index = found.get("index")
    source = found.get("data_source", "")
    return f"{source} {index}" if index is not None else f"#{task_no}"


def search_words(text: str) -> str:
    """Return ``text`` as a valid FTS5 query: all words and "phrases", with the last word as a prefix."""
    found = [phrase or word for phrase, word in _WORD.findall(text.replace("\0", " "))]
    words = [word for word in found if any(char.isalnum() for char in word)]
    quoted = ['"' + word.replace('"', '""') + '"' for word in words]
    return " ".join([*quoted[:-1], f"{quoted[-1]}*"]) if quoted else '""'


def _conditions(wanted: ExperienceQuery) -> tuple[list[str], list[object]]:
    """The selection but for its text, as SQL and its values."""
    where = ["r.kind = ?"]
    values: list[object] = [wanted.kind]
    if wanted.task:
        where.append("r.task = ?")
        values.append(wanted.task)
    if wanted.sort == "reward":
        where.append("r.reward IS NOT NULL")
    for sign, bounds in ((">=", wanted.least), ("<=", wanted.most)):
        for name, value in bounds.items():
            where.append(f"r.{name} {sign} ?")
            values.append(value)
    return where, values
