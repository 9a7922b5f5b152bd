"""mlflow's local stores.

The file store has ``mlruns/<experiment>/<run>/metrics/<name>`` with lines of ``timestamp_ms value step``, the
SQLite store a table ``metrics``.
"""

from __future__ import annotations

import math
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from trinity_compat.common import untrusted_sqlite
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.untrusted_sqlite import ReadLimits
from trinity_compat.compare.model import RunMetrics, Series

_TABLES = {
    "metrics": ("run_uuid", "key", "step", "value", "timestamp", "is_nan"),
    "runs": ("run_uuid", "name", "start_time"),
}
_POINTS = """SELECT m.run_uuid, r.name, m.key, m.step, m.value, m.timestamp, m.is_nan FROM metrics m
JOIN runs r ON r.run_uuid = m.run_uuid ORDER BY r.start_time, m.run_uuid, m.timestamp"""
_CPU_S, _CPU_S_PER_BYTE = 30.0, 1 / (4 << 20)
_VALUE, _TOTAL = 1 << 20, 16 << 30  # bytes; of a point 24 are kept


def is_run(directory: Path) -> bool:
    """Return whether this is one run of a file store."""
    return (directory / "meta.yaml").is_file() and (directory / "metrics").is_dir()


def read_run(directory: Path) -> RunMetrics:
    """One run of a file store."""
    series: dict[str, Series] = {}
    root = directory / "metrics"
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        into = series.setdefault(path.relative_to(root).as_posix(), Series())
        for line in path.read_text().splitlines():
            parts = line.split()
            if len(parts) >= 3:
                into.add(int(parts[2]), float(parts[1]), int(parts[0]) / 1000)
    tag = directory / "tags" / "mlflow.runName"
    name = tag.read_text().strip() if tag.is_file() else directory.name
    return RunMetrics(name, str(directory), "mlflow", series)


def _written(value: float, is_nan: bool) -> float:
    """The value as it was logged: the store keeps NaN as a flag, and infinity as the largest float."""
    if is_nan:
        return math.nan
    return math.copysign(math.inf, value) if abs(value) >= sys.float_info.max else value


def read_database(path: Path) -> list[RunMetrics]:
    """Every run of a SQLite store that has metrics, opened read-only and read within limits."""
    limits = ReadLimits(_CPU_S + path.stat().st_size * _CPU_S_PER_BYTE, _VALUE, _TOTAL)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            untrusted_sqlite.bound(connection, path, limits)
            schema = untrusted_sqlite.schema_of(connection.execute, path)
            try:
                untrusted_sqlite.require_tables(connection.execute, path, schema, _TABLES)
            except UserError as error:
                raise UserError(f"not an mlflow database: {error.message}", where=error.where) from error
            points = connection.execute(_POINTS)
            runs: dict[str, RunMetrics] = {}
            for uuid, name, key, step, value, stamp, is_nan in points:
                run = runs.setdefault(uuid, RunMetrics(name or uuid, str(path), "mlflow", {}))
                run.series.setdefault(key, Series()).add(step, _written(value, is_nan), stamp / 1000)
            return list(runs.values())
    except (sqlite3.Error, MemoryError) as error:
        said = untrusted_sqlite.explained(error, limits) or str(error)
        raise UserError(f"not an mlflow database: {said}", where=Where(str(path))) from error
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"holds a value that mlflow does not write: {error}", where=Where(str(path))
        ) from error
