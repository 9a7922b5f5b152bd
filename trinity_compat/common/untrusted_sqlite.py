"""SQLite files that somebody else may have made, read within limits of time and memory.

Such a file can hold programs: a view is a query, a virtual table runs code, a column may be computed. Only
tables of stored values are read, by ``require_tables``. A damaged or a forged one can still lead in circles,
or repeat one value of hundreds of megabytes in each row: ``bound`` ends that.
"""

from __future__ import annotations

import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trinity_compat.common.errors import UserError, Where

_STEPS = 2000  # of SQLite's machine between two looks at the clock: one may read a value of megabytes
_MOST_ENTRIES = 1000  # of a schema
_OBJECT = 64  # bytes: what each value of a JSON text takes in Python, about
_LENGTH = 0  # SQLITE_LIMIT_LENGTH, which Python 3.10 does not name
_HEAP = 512 << 20  # bytes of all of this process's connections, where Python 3.10 has no limit of a value
_NAMED = re.compile(r'CREATE (VIEW|VIRTUAL TABLE) (\w+|"[^"]*"|`[^`]*`|\[[^]]*\]) *(?:AS\s|USING\s|\()', re.I)
# SQLite writes these words itself, whatever its user wrote.
_PLAIN = ("CREATE TABLE ", "CREATE INDEX ", "CREATE UNIQUE INDEX ", "CREATE TRIGGER ")
Execute = Callable[[str], Iterable[Sequence[object]]]
Schema = Sequence[Sequence[object]]  # (name, SQL) of each entry


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of what one connection reads.

    ``cpu_s``: processor time of the thread that reads; ``value``: bytes of one value; ``total``: bytes that
    all rows take in Python, as objects if they are JSON.
    """

    cpu_s: float
    value: int = 16 << 20
    total: int = 512 << 20


def bound(connection: sqlite3.Connection, file: Path, limits: ReadLimits) -> None:
    """Hold a connection within the limits, and let it change nothing."""
    spent = _Spent(file, limits)
    connection.set_progress_handler(spent.is_over, _STEPS)
    connection.row_factory = spent.counted
    if (set_limit := getattr(connection, "setlimit", None)) is not None:
        set_limit(_LENGTH, limits.value)
    else:
        connection.execute(f"PRAGMA hard_heap_limit={_HEAP}")
    # No schema's function is called, pages are checked, and a file that is cut short meanwhile is an error
    # where mapped memory would be the end of the process.
    for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "query_only=ON"):
        connection.execute(f"PRAGMA {pragma}")


class _Spent:
    """Time and memory that a connection has taken."""

    def __init__(self, file: Path, limits: ReadLimits) -> None:
        self._file, self._limits = file, limits
        self._time = 0.0
        self._bytes = 0
        self._thread, self._looked = threading.get_ident(), time.thread_time()

    def is_over(self) -> bool:
        """Return whether its time is over: SQLite then ends the statement as interrupted."""
        thread, now = threading.get_ident(), time.thread_time()
        if thread == self._thread:
            self._time += now - self._looked
        self._thread, self._looked = thread, now
        return self._time > self._limits.cpu_s

    def counted(self, _: object, row: tuple[object, ...]) -> tuple[object, ...]:
        """Return the row. Raises UserError where it is one too many."""
        self._bytes += sum(map(_size, row))
        if self._bytes > self._limits.total:
            raise UserError(
                f"more than {self._limits.total >> 20} MiB would have to be read at once",
                where=Where(str(self._file)),
            )
        return row


def _size(value: object) -> int:
    size = sys.getsizeof(value)
    if isinstance(value, str):
        size += _OBJECT * sum(map(value.count, ",[{"))
    return size


def explained(error: BaseException, limits: ReadLimits) -> str:
    """Return what is wrong with a file whose reading raised SQLite's error; '' for another kind of fault."""
    text = str(error)
    if "interrupted" in text:
        return f"reading takes more than {limits.cpu_s:.0f} s of processor time"
    if "too big" in text:
        return f"has a value of more than {limits.value >> 20} MiB"
    if isinstance(error, MemoryError):
        return f"reading takes more than {_HEAP >> 20} MiB of memory"
    damages = ("malformed", "not a database", "decode to UTF-8", "unsupported file", "unrecognized token")
    if any(part in text for part in damages):
        return f"is damaged, or was not written by trinity-compat: {text.partition(' with text')[0]}"
    return ""


def schema_of(execute: Execute, file: Path) -> Schema:
    """Return the entries of a schema. Raises UserError for one that is too large."""
    found = list(execute(f"SELECT name, sql FROM sqlite_master LIMIT {_MOST_ENTRIES + 1}"))
    if len(found) > _MOST_ENTRIES:
        raise UserError(f"has more than {_MOST_ENTRIES} tables and indexes", where=Where(str(file)))
    return found


def require_tables(
    execute: Execute,
    file: Path,
    schema: Schema,
    tables: Mapping[str, Collection[str]],
    views: Mapping[str, str] | None = None,
) -> None:
    """Raise UserError unless ``tables`` are tables that store these columns, and ``views`` have this SQL.

    Other entries may be there where nothing reads them. A forged schema can create another name than its
    entry says, so that the SQL decides; ``PRAGMA table_list`` would run what the views say.
    """
    known = views or {}
    for name, sql in schema:
        if sql is None or (isinstance(sql, str) and sql.startswith(_PLAIN)):
            continue
        match = _NAMED.match(sql) if isinstance(sql, str) else None
        real = match[2].strip('"`[]').lower() if match else ""
        if real in known and sql == known[real]:
            continue
        if match is None or real in known or real in tables:
            kind = match[1].lower() if match else "entry of the schema"
            raise UserError(
                f"{real or name!s:.60} is a {kind} that trinity-compat does not make: it is not read",
                where=Where(str(file)),
            )
    for table, columns in tables.items():
        found = {str(row[1]).lower(): row[6] for row in execute(f'PRAGMA table_xinfo("{table}")')}
        if computed := [name for name in columns if found.get(name)]:
            raise UserError(
                f"column {computed[0]} of {table} is computed, not stored", where=Where(str(file))
            )
        if missing := [name for name in columns if name not in found]:
            raise UserError(f"table {table} has no column {missing[0]}", where=Where(str(file)))
