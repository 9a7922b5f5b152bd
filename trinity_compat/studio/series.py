"""Metrics of one job as series over steps, kept in memory and read on from where the last look ended."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import sqlalchemy as sa

from trinity_compat.buffer import codec, queries
from trinity_compat.buffer.queries import query
from trinity_compat.common.errors import UserError
from trinity_compat.studio.jobs import Job

Row = dict[str, float]
Seen = tuple[int, int]  # a step, how many figures its row had

_KEPT = 20  # jobs whose metrics stay in memory
_MOST_FIGURES = 8_000_000  # that stay, of some 100 bytes each; one job may have half of them


class Metrics:
    """``rows[role][step]`` are one step's metrics; where two histories log it, the newer one's win."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, Row]] = {}
        self.figures = 0
        self.history = 0
        self._lock = threading.Lock()

    def update(self, job: Job) -> None:
        """Read what is new. Raises UserError or BufferError where the database cannot be read."""
        with self._lock:
            job.database().run(self._read, write=False)

    def _read(self, conn: sa.Connection) -> None:
        history = int(conn.execute(query(queries.HISTORY)).scalar_one())
        if history != self.history:  # a resume took rows back
            self.rows, self.figures, self.history = {}, 0, history
        # The last step again: its evaluation is added to it later. Sides stand at different steps.
        first = min((max(rows) for rows in self.rows.values() if rows), default=0)
        for role, step, text in conn.execute(query(queries.METRICS_OF_SIDES), {"first": first}):
            rows = self.rows.setdefault(role, {})
            self.figures -= len(rows.get(step, ()))
            rows[step] = rows.get(step, {}) | codec.numbers(text)  # a resume validates its checkpoint's
            self.figures += len(rows[step])
            if self.figures > _MOST_FIGURES // 2:
                self.rows, self.figures = {}, 0
                raise UserError(f"its metrics are more than {_MOST_FIGURES // 2:,} figures")

    def last(self) -> dict[str, Seen]:
        """Role → its newest step, and how many figures that has."""
        steps = {role: max(rows) for role, rows in self.rows.items() if rows}
        return {role: (step, len(self.rows[role][step])) for role, step in steps.items()}

    def newest(self, role: str, count: int) -> list[tuple[int, Row]]:
        """The last ``count`` rows of a role, oldest first."""
        rows = self.rows.get(role, {})
        return [(step, rows[step]) for step in sorted(rows)[-count:]]

    def after(self, seen: Mapping[str, Seen]) -> dict[str, list[tuple[int, Row]]]:
        """Role → the rows that are new since ``seen``; its last one again where figures were added."""
        found: dict[str, list[tuple[int, Row]]] = {}
        for role, rows in self.rows.items():
            new = sorted(step for step in rows if (step, len(rows[step])) > seen.get(role, (-1, 0)))
            if new:
                found[role] = [(step, rows[step]) for step in new]
        return found

    def names(self) -> list[str]:
        """Every series that ``series`` knows, sorted."""
        trainer = {name for row in self.rows.get("trainer", {}).values() for name in row}
        others = {
            public(role, name, trainer)
            for role, rows in self.rows.items()
            if role != "trainer"
            for row in rows.values()
            for name in row
        }
        return sorted(trainer | others)

    def series(self, names: Iterable[str]) -> dict[str, tuple[list[int], list[float]]]:
        """Name → (steps, values); a name that is not there is left out."""
        trainer = {name for row in self.rows.get("trainer", {}).values() for name in row}
        found = {}
        for name in dict.fromkeys(names):
            points = list[tuple[int, float]]()
            for role, rows in self.rows.items():
                own = name.removeprefix("" if role == "trainer" else f"{role}/")
                if public(role, own, trainer) == name:
                    points += [(step, row[own]) for step, row in rows.items() if own in row]
            if points:
                points.sort()
                found[name] = ([step for step, _ in points], [value for _, value in points])
        return found


def public(role: str, name: str, trainer: set[str]) -> str:
    """Return a series' name, with ``explorer/`` for an explorer's metric that the trainer has too."""
    return f"{role}/{name}" if role != "trainer" and (name in trainer or role != "explorer") else name


class SeriesCache:
    """The metrics of the jobs that were looked at last."""

    def __init__(self) -> None:
        self._kept: dict[Path, Metrics] = {}
        self._lock = threading.Lock()

    def of(self, job: Job) -> Metrics:
        """Up to date. Raises as ``Metrics.update``."""
        with self._lock:
            found = self._kept.pop(job.dir.root, None) or Metrics()
            self._kept[job.dir.root] = found
        found.update(job)
        with self._lock:
            while len(self._kept) > 1 and (
                len(self._kept) > _KEPT or sum(one.figures for one in self._kept.values()) > _MOST_FIGURES
            ):
                self._kept.pop(next(iter(self._kept)))
        return found
