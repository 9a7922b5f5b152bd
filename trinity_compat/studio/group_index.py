"""The groups of one job in its side index: figures of each, a step's rewards, neighbours in a selection."""

from __future__ import annotations

import math
import sqlite3
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

PAGE = 64
SCHEMA = """
CREATE TABLE IF NOT EXISTS groups (id INTEGER PRIMARY KEY, kind TEXT, step INTEGER, task TEXT,
    answers INTEGER, mean REAL, spread REAL, low REAL, high REAL, advantage REAL, truncated INTEGER,
    tools INTEGER, turns INTEGER, first_version INTEGER, version INTEGER, length REAL, rank REAL);
CREATE INDEX IF NOT EXISTS groups_newest ON groups (kind, id);
CREATE INDEX IF NOT EXISTS groups_step ON groups (kind, step, id);
CREATE INDEX IF NOT EXISTS groups_task ON groups (task, kind, step, id);
CREATE INDEX IF NOT EXISTS groups_outcome ON groups (kind, step, low, high);
"""
# Sort → column. Those that a group may lack leave it out; rank is the mean, and the worst without one.
SORTS = {
    "newest": "id",
    "mean": "rank",
    "spread": "spread",
    "advantage": "advantage",
    "truncated": "truncated",
    "version": "version",
    "tools": "tools",
    "turns": "turns",
    "length": "length",
}
BOUNDS = ("mean", "spread", "advantage", "truncated", "version", "tools", "turns")
SCHEMA += "".join(
    f"CREATE INDEX IF NOT EXISTS groups_{column} ON groups (kind, {column}, id);\n"
    for column in SORTS.values()
    if column != "id"
)
OUTCOMES = {"right": "low >= :right", "wrong": "high < :right", "mixed": "low < :right AND high >= :right"}
RIGHT = 0.5  # a right answer has at least this reward, unless the reader sets another one
MOST_REWARDS = 100_000  # of a step, that its distribution is made of
_MOST_BARS = 24
SHADES = 7  # of rewards, from the lowest to the highest
_LOWEST = -1e308
_MOST_STEPS = 200  # of a task's drift
_OF_GROUP = """SELECT kind, step, task, reward, truncated, tools, turns, first_version, version, length
FROM rows WHERE group_id = ?"""


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """A selection of groups. ``step`` None: all steps. ``right``: the least reward of a right answer."""

    kind: str = "train"
    step: int | None = None
    task: str = ""
    outcome: str = ""
    right: float = RIGHT
    least: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, float] = field(default_factory=dict)
    sort: str = "newest"
    up: bool = False
    after: tuple[float, int] | None = None


@dataclass(frozen=True, slots=True)
class RewardBar:
    """``count`` answers with a reward from ``low`` to ``high``, both inclusive."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class RewardScale:
    """The lowest and the highest reward of a kind of answers, between which rewards have their colours."""

    low: float = 0.0
    high: float = 1.0

    def share(self, reward: float | None) -> float | None:
        """Return the place from 0 (the lowest) to 1; None for a reward that is not finite."""
        if reward is None or not math.isfinite(reward):
            return None
        if self.low >= self.high:
            return float(reward >= RIGHT)
        return min(1.0, max(0.0, (reward / 2 - self.low / 2) / (self.high / 2 - self.low / 2)))

    def shade(self, reward: float | None) -> str:
        """Return the colour's class: r0 … r6, or rx."""
        share = self.share(reward)
        return "rx" if share is None else f"r{min(SHADES - 1, int(share * SHADES))}"


def scale(db: sqlite3.Connection, kind: str) -> RewardScale:
    """Return the scale of all rewards of a kind."""
    ends = [
        db.execute(f"SELECT {end}(reward) FROM rows WHERE kind = ?", (kind,)).fetchone()[0]
        for end in ("min", "max")
    ]
    return RewardScale() if None in ends else RewardScale(*ends)


def rewards(db: sqlite3.Connection, groups: Sequence[int]) -> dict[int, list[tuple[float | None, int]]]:
    """Return group → (reward, id) of its answers, the worst first."""
    found: dict[int, list[tuple[float | None, int]]] = {number: [] for number in groups}
    marks = ",".join("?" * len(groups))
    statement = f"SELECT group_id, reward, id FROM rows WHERE group_id IN ({marks}) ORDER BY reward, id"
    for number, reward, answer in db.execute(statement, list(groups)):
        found[number].append((reward, answer))
    return found


def validations(db: sqlite3.Connection, kinds: Iterable[str]) -> list[tuple[int, str]]:
    """Return (step, kind) of each validation in their order: of one that a resume repeated the newer last."""
    found = [(steps(db, kind, None)[2], kind) for kind in kinds if kind.startswith("eval:")]
    return sorted(
        ((step, kind) for step, kind in found if step is not None),
        key=lambda each: (each[0], len(each[1]), each),
    )


def titles(kinds: Sequence[str], validations: Sequence[tuple[int, str]]) -> dict[str, str]:
    """Return kind → its title, which for a validation has its step."""
    known = {kind: f"validation at step {step} ({kind})" for step, kind in validations}
    return {kind: known.get(kind, kind) for kind in kinds}


def changes(
    db: sqlite3.Connection, before: str, kind: str, right: float
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Return the tasks of a validation that became solved since another one, and those that no longer are.

    A task is solved where its mean reward is at least ``right``.
    """
    statement = """SELECT n.id, n.task, o.mean AS before, n.mean AS mean FROM groups n
        JOIN groups o ON o.task = n.task AND o.kind = :before
        WHERE n.kind = :kind AND (n.mean >= :right) <> (o.mean >= :right) ORDER BY n.task, n.id"""
    rows = _rows(db, statement, {"before": before, "kind": kind, "right": right})
    parts: tuple[list[dict[str, object]], list[dict[str, object]]] = ([], [])
    for row in rows:
        parts[float(str(row["mean"])) < right].append(row)
    return parts


def keep(db: sqlite3.Connection, numbers: Iterable[int]) -> None:
    """Write the figures of these groups, from all their rows."""
    figures = [(number, *_figures(db.execute(_OF_GROUP, (number,)).fetchall())) for number in numbers]
    db.executemany(f"INSERT OR REPLACE INTO groups VALUES ({','.join('?' * 17)})", figures)


def _figures(rows: Sequence[Sequence[float]]) -> tuple[object, ...]:
    kind, step, task, *_ = rows[0]
    rewards = [row[3] for row in rows if row[3] is not None]
    truncated, tools, turns, first, last, length = zip(*(row[4:] for row in rows), strict=True)
    figures: tuple[float | None, ...] = (None,) * 5
    if rewards:
        mean, low, high = statistics.fmean(rewards), min(rewards), max(rewards)
        # The sample's, as veRL's; 0.1 + 0.1 + 0.1 must not have one.
        spread = statistics.stdev(rewards) if low < high else 0.0
        if not math.isfinite(spread):
            spread = 0.0
        advantage = (high - mean) / spread if spread else 0.0
        figures = (mean, spread, low, high, advantage if len(rewards) > 1 else None)
    rank = _LOWEST if figures[0] is None else figures[0]
    counts = (sum(truncated), max(tools), max(turns), min(first), max(last), statistics.fmean(length), rank)
    return (kind, step, task, len(rows), *figures, *counts)


def page(db: sqlite3.Connection, wanted: GroupQuery, *, limit: int = PAGE) -> list[dict[str, object]]:
    """Return ``limit`` groups of the selection in its order; one more where there is a next page."""
    where, values = _conditions(wanted)
    column, order = SORTS[wanted.sort], "ASC" if wanted.up else "DESC"
    if wanted.after is not None:
        few = _no_index(wanted)
        where.append(f"({few}{column}, {few}id) {'>' if wanted.up else '<'} (:value, :number)")
        values |= {"value": wanted.after[0], "number": wanted.after[1]}
    by = f"{_no_index(wanted)}{column}"
    statement = f"""SELECT * FROM groups WHERE {" AND ".join(where)}
        ORDER BY {by} {order}, id {order} LIMIT :limit"""
    return _rows(db, statement, values | {"limit": limit + 1})


def one(db: sqlite3.Connection, number: int) -> dict[str, object] | None:
    """Return a group's figures; None where it is not indexed yet."""
    found = _rows(db, "SELECT * FROM groups WHERE id = :number", {"number": number})
    return found[0] if found else None


def neighbours(db: sqlite3.Connection, wanted: GroupQuery, number: int) -> tuple[int | None, int | None]:
    """Return the groups before and after one in the order of a selection, which need not contain it."""
    column = SORTS[wanted.sort]
    here = db.execute(f"SELECT {column} FROM groups WHERE id = ?", (number,)).fetchone()
    if here is None or here[0] is None:
        return None, None
    wanted = replace(wanted, after=(here[0], number))
    back, on = (page(db, replace(wanted, up=up), limit=1)[:1] for up in (not wanted.up, wanted.up))
    return (_number(back), _number(on))


def _number(rows: Sequence[Mapping[str, object]]) -> int | None:
    return int(str(rows[0]["id"])) if rows else None


def outcomes(db: sqlite3.Connection, wanted: GroupQuery) -> dict[str, int]:
    """Return how many groups of the selection, whatever its outcome and page, have each; and ``all``."""
    where, values = _conditions(replace(wanted, outcome="", after=None))
    sums = ", ".join(f"coalesce(sum({condition}), 0)" for condition in OUTCOMES.values())
    # Over all steps each group is looked at: in the table's order that takes a seventh of an index's time.
    groups = "groups" if wanted.step is not None or wanted.task else "groups NOT INDEXED"
    row = db.execute(
        f"SELECT {sums}, count(*) FROM {groups} WHERE {' AND '.join(where)}",
        {"right": wanted.right, **values},
    ).fetchone()
    return dict(zip((*OUTCOMES, "all"), row, strict=True))


def steps(db: sqlite3.Connection, kind: str, step: int | None) -> tuple[int | None, int | None, int | None]:
    """Return the step before and after ``step``, and the newest one."""
    found = [
        db.execute(f"SELECT {end}(step) FROM groups WHERE kind = ? {where}", (kind, *values)).fetchone()[0]
        for end, where, values in (
            ("max", "AND step < ?", (step,)),
            ("min", "AND step > ?", (step,)),
            ("max", "", ()),
        )
    ]
    return found[0], found[1], found[2]


def distribution(db: sqlite3.Connection, kind: str, step: int) -> tuple[list[RewardBar], int]:
    """Return the bars of a step's rewards, lowest first, and how many answers have a reward.

    Few different rewards have a bar each; many share bars of equal width.
    """
    statement = (
        "SELECT reward FROM rows WHERE kind = ? AND step = ? AND reward IS NOT NULL ORDER BY id LIMIT ?"
    )
    rewards = [row[0] for row in db.execute(statement, (kind, step, MOST_REWARDS))]
    distinct = sorted(set(rewards))
    if len(distinct) <= _MOST_BARS:
        counted = Counter(rewards)
        return [RewardBar(one, one, counted[one]) for one in distinct], len(rewards)
    low, wide = distinct[0], (distinct[-1] / _MOST_BARS - distinct[0] / _MOST_BARS)
    shared: list[list[float]] = [[] for _ in range(_MOST_BARS)]
    for reward in rewards:
        shared[int(min(_MOST_BARS - 1, (reward - low) / wide)) if wide else 0].append(reward)
    return [RewardBar(min(each), max(each), len(each)) for each in shared if each], len(rewards)


def over_time(db: sqlite3.Connection, kind: str, task: str) -> list[dict[str, object]]:
    """Return the newest groups of one task, oldest first: of a validation's those of all validations."""
    statement = """SELECT id AS group_id, kind, step, mean, spread, high AS best, answers FROM groups
        WHERE kind BETWEEN :first AND :last AND task = :task ORDER BY step DESC, id DESC LIMIT :limit"""
    family, colon, _ = kind.partition(":")  # eval:1, eval:2, …
    first, last = (f"{family}:", f"{family};") if colon else (kind, kind)
    values = {"first": first, "last": last, "task": task, "limit": _MOST_STEPS}
    return _rows(db, statement, values)[::-1]


def _rows(db: sqlite3.Connection, statement: str, values: Mapping[str, object]) -> list[dict[str, object]]:
    db.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in db.execute(statement, dict(values))]
    finally:
        db.row_factory = None


def _no_index(wanted: GroupQuery) -> str:
    """Return the + that keeps SQLite from a column's index where the step or task leaves few groups."""
    return "+" if wanted.step is not None or wanted.task else ""


def _conditions(wanted: GroupQuery) -> tuple[list[str], dict[str, object]]:
    where, values = ["kind = :kind"], dict[str, object](kind=wanted.kind)
    if wanted.step is not None:
        where.append("step = :step")
        values["step"] = wanted.step
    if wanted.task:
        where.append("task = :task")
        values["task"] = wanted.task
    if wanted.outcome:
        where.append(OUTCOMES[wanted.outcome])
        values["right"] = wanted.right
    few = _no_index(wanted)
    if wanted.sort != "newest":
        where.append(f"{few}{SORTS[wanted.sort]} IS NOT NULL")
    for end, sign, bounds in (("min", ">=", wanted.least), ("max", "<=", wanted.most)):
        for name, value in bounds.items():
            where.append(f"{few}{name} {sign} :{name}_{end}")
            values[f"{name}_{end}"] = value
    return where, values
