"""Index of the runs that were read, in the user's cache for the studio's next start: a file for all folders.

An entry holds while the run's files have the same stamp (``Job.signature``). All of it can be read again: an
index that is damaged, or was written by another release, is thrown away, and where none can be written the
studio works without. Entries are JSON; nothing in them acts.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trinity_compat import __version__
from trinity_compat.studio.private_files import cache_folder, keep_private

T = TypeVar("T")
_FORM = f"1 {__version__}"  # of the entries
_MOST = 20_000  # runs; the ones read longest ago are dropped
_LARGEST = 1 << 20  # bytes of an entry's JSON: what a hostile job puts there is read again each time
_CHANCES = 3  # new files after damaged ones
_SCHEMA = """
CREATE TABLE IF NOT EXISTS form (value TEXT);
CREATE TABLE IF NOT EXISTS runs (place TEXT PRIMARY KEY, stamp TEXT NOT NULL, read_at REAL NOT NULL,
    summary BLOB NOT NULL, configuration BLOB);
CREATE INDEX IF NOT EXISTS by_age ON runs (read_at);
"""


@dataclass(frozen=True, slots=True)
class IndexedRun:
    """The run at ``place`` as it was read while its files had this ``stamp``."""

    place: Path
    stamp: str
    summary: Mapping[str, object]
    configuration: Mapping[str, object] | None  # None: it could not be read


class RunIndex:
    """The index file, opened at its first use. No method raises for what is wrong with the file."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or cache_folder() / "runs.db"
        self._db: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._chances = _CHANCES

    def summary(self, place: Path, stamp: str) -> Mapping[str, object] | None:
        """Return the summary of a run with that stamp, None where there is none."""
        return self._read("summary", place, stamp)

    def configuration(self, place: Path, stamp: str) -> Mapping[str, object] | None:
        """Return its configuration, dotted key → value; None where there is none."""
        return self._read("configuration", place, stamp)

    def keep(self, entries: Sequence[IndexedRun]) -> None:
        """Keep entries in place of those of the same runs."""
        packed = ((entry, _packed(entry.summary), _packed(entry.configuration)) for entry in entries)
        rows = [
            (_key(entry.place), entry.stamp, time.time(), summary, configuration)
            for entry, summary, configuration in packed
            if summary is not None
        ]

        def write(db: sqlite3.Connection) -> None:
            with db:
                db.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", rows)
                over = "SELECT place FROM runs ORDER BY read_at DESC LIMIT -1 OFFSET ?"
                db.execute(f"DELETE FROM runs WHERE place IN ({over})", (_MOST,))

        if rows:
            self._with_file(write)

    def _read(self, column: str, place: Path, stamp: str) -> Mapping[str, object] | None:
        def read(db: sqlite3.Connection) -> Mapping[str, object] | None:
            statement = f"SELECT {column} FROM runs WHERE place = ? AND stamp = ?"
            row = db.execute(statement, (_key(place), stamp)).fetchone()
            if row is None or row[0] is None:
                return None
            found = json.loads(zlib.decompress(row[0]))
            if not isinstance(found, dict):
                raise TypeError(column)
            return found

        return self._with_file(read)

    def _with_file(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Return what ``work`` returns; None where the file cannot be used, or was damaged."""
        with self._lock:
            try:
                db = self._opened()
                return None if db is None else work(db)
            except (sqlite3.Error, zlib.error, ValueError, TypeError, RecursionError) as error:
                if not (isinstance(error, sqlite3.OperationalError) and "locked" in str(error)):
                    # The next use makes a new file, unless that has happened a few times.
                    self._chances -= 1
                    if self._db is not None:
                        self._db.close()
                        self._db = None
                    with contextlib.suppress(OSError):
                        self._path.unlink()
            return None

    def _opened(self) -> sqlite3.Connection | None:
        """Return the connection; None where no file can be made. Raises sqlite3.Error."""
        if self._db is None and self._chances:
            try:
                keep_private(self._path)
            except OSError:
                self._chances = 0
                return None
            self._db = self._begun()
        return self._db

    def _begun(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=1, check_same_thread=False)
        try:
            db.execute("PRAGMA trusted_schema=OFF")
            db.execute("PRAGMA synchronous=OFF")  # what a crash of the machine damages is thrown away
            with db:
                db.executescript(_SCHEMA)
                if db.execute("SELECT value FROM form").fetchall() != [(_FORM,)]:
                    db.executescript(f"DROP TABLE runs; DELETE FROM form; {_SCHEMA}")
                    db.execute("INSERT INTO form VALUES (?)", (_FORM,))
        except BaseException:
            db.close()
            raise
        return db


def _key(place: Path) -> str:
    return os.fsencode(place).hex()


def _packed(value: Mapping[str, object] | None) -> bytes | None:
    """Return JSON, compressed, which has a checksum; None where it is too large or no JSON."""
    if value is None:
        return None
    try:
        text = json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError):
        return None
    return zlib.compress(text, 1) if len(text) <= _LARGEST else None
