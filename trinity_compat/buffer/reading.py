"""Read access to a job's database: one that others may have made, also where nothing can be written.

Each connection has limits, and each transaction reads only tables of stored values (``untrusted_sqlite``).

Where the folder cannot be written (another user's job, a read-only mount, an archive), everything committed
is read too. SQLite's ``mode=ro`` needs the shared-memory file ``-shm`` beside a database in WAL mode, and
creates it if missing. Where it cannot, no run is active, and the file is read without locks: with the WAL of
a killed run if there is one, else by itself.
"""

from __future__ import annotations

import functools
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from trinity_compat.buffer.database import LATEST, Database
from trinity_compat.buffer.migrations import MIGRATIONS
from trinity_compat.common import database_url, untrusted_sqlite
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.untrusted_sqlite import ReadLimits

T = TypeVar("T")
_WAIT_S = 10.0  # for a database that is locked just now
_VERSIONS = "schema_migrations"
# Of a command: a buffer of a million answers needs seconds, and one that leads in circles ends.
_CPU_S, _CPU_S_PER_BYTE = 30.0, 1 / (32 << 20)
_VALUE, _TOTAL = 64 << 20, 1536 << 20
# What a value of another type raises in the code that reads it.
_ODD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class UntrustedDatabase(Database):
    """An SQLite database that is only read, within ``limits``; a value that makes no sense is a UserError."""

    limits: ReadLimits
    _accepted: untrusted_sqlite.Schema | None = None  # the schema of the last transaction

    def run(self, work: Callable[[sa.Connection], T], *, write: bool = True) -> T:
        """``work`` in one transaction. Raises UserError for a damaged file and where a limit ends it."""
        with self._explained():
            return super().run(work, write=write)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise UserError in place of what reading a damaged or a hostile file raises."""
        try:
            yield
        except (MemoryError, DBAPIError) as error:
            if said := self._said(error):
                raise UserError(said, where=Where(str(self.file or self.name))) from error
            raise
        except (*_ODD, sa.exc.InvalidRequestError) as error:
            raise UserError(
                f"holds a value that no run writes: {error!s:.200}", where=Where(str(self.file or self.name))
            ) from error

    def _said(self, error: BaseException) -> str:
        cause = error.orig if isinstance(error, DBAPIError) else error
        return "" if cause is None or self.file is None else untrusted_sqlite.explained(cause, self.limits)

    def _explain(self, error: DBAPIError) -> Exception:
        return error if self._said(error) else super()._explain(error)

    def _reading_engine(self, connect: Callable[[], sqlite3.Connection]) -> sa.Engine:
        # No connection is kept: an idle reader would hold back the checkpoint of the run's WAL, and each has
        # its own limits.
        engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.NullPool)
        sa.event.listen(engine, "begin", self._begin)
        return engine

    def _begin(self, conn: sa.Connection) -> None:
        """Begin a transaction, and look at the schema that it sees: another user may replace the file."""
        conn.exec_driver_sql("BEGIN")
        file = self.file or Path()
        schema = untrusted_sqlite.schema_of(conn.exec_driver_sql, file)
        if schema == self._accepted or not any(name == _VERSIONS for name, _ in schema):
            return
        check = functools.partial(untrusted_sqlite.require_tables, conn.exec_driver_sql, file, schema)
        check({_VERSIONS: ("number",)})
        if conn.exec_driver_sql(f"SELECT max(number) FROM {_VERSIONS}").scalar_one() == LATEST:
            check(*_newest_schema())
        self._accepted = schema


@functools.cache
def _newest_schema() -> tuple[Mapping[str, Collection[str]], Mapping[str, str]]:
    """Return table → columns, view → SQL of a new database."""
    with closing(sqlite3.connect(":memory:")) as made:
        for migration in MIGRATIONS:
            for statement in migration.render("sqlite"):
                made.execute(statement)
        tables = [name for (name,) in made.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {
            name: [row[1] for row in made.execute(f"PRAGMA table_info({name})")]
            for name in tables
            if not name.startswith("sqlite_")
        }
        return columns, dict(made.execute("SELECT name, sql FROM sqlite_master WHERE type = 'view'"))


class UnwritableDatabase(UntrustedDatabase):
    """The database of a command that reads. Raises UserError where it has another schema."""

    def __init__(self, url: str) -> None:
        super().__init__(url, create=False, retry_s=_WAIT_S)

    def run(self, work: Callable[[sa.Connection], T], *, write: bool = True) -> T:
        """``work`` in one transaction. Raises UserError for anything that would write."""
        if write:
            raise UserError(f"{self.file} cannot be written", hint="take a copy that can be")
        return super().run(work, write=False)

    def _make_engine(self) -> sa.Engine:
        path = self.file
        if path is None:
            raise TypeError("UnwritableDatabase is for SQLite files; this is a database server")
        seconds = _CPU_S + path.stat().st_size * _CPU_S_PER_BYTE
        self.limits = ReadLimits(seconds, _VALUE, _TOTAL)
        return self._reading_engine(lambda: connect_to_read(path, self.limits))

    def _migrate(self, create: bool) -> None:
        found = self.run(self._version, write=False)
        if found != LATEST:
            raise OtherSchema(
                f"{self.name} has schema {found}, this trinity-compat reads {LATEST}",
                hint="`trinity-compat buffer stats` brings a copy of it up to date",
            )


class OtherSchema(UserError):
    """A database of an older release, or an empty one."""


def connect_to_read(path: Path, limits: ReadLimits, *, timeout_s: float = _WAIT_S) -> sqlite3.Connection:
    """A connection that reads an SQLite file within limits and changes nothing, in WAL mode or not.

    Where the file is another user's, or the folder cannot be written, it makes no file beside it either.
    """
    how, pragmas = "mode=ro", ""
    # The index of a WAL that this user made would stand in the way of the file's owner.
    if not (is_own(path) and can_be_written(path)) and not Path(f"{path}-shm").exists():
        wal = Path(f"{path}-wal")
        left = wal.exists() and wal.stat().st_size > 0
        # With exclusive locking the index of the WAL is in this process's memory, not in -shm.
        how, pragmas = (
            ("mode=ro&vfs=unix-none", "PRAGMA locking_mode=EXCLUSIVE") if left else ("immutable=1", "")
        )
    made = sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?{how}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        made.execute(pragmas)
        untrusted_sqlite.bound(made, path, limits)
    except BaseException:
        made.close()
        raise
    return made


def can_be_written(file: Path) -> bool:
    """Return whether this process may write an SQLite file, and the files that SQLite makes beside it."""
    return os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)


def is_own(file: Path) -> bool:
    """Return whether a file belongs to the user of this process."""
    return file.stat().st_uid == os.geteuid()


def open_for_reading(url: str) -> Database:
    """Open the database at ``url`` for reports. Raises UserError where there is none.

    A file is read as one that others may have made. One of an older release is brought up to date before,
    if it is this user's own.
    """
    file = database_url.file_of(url)
    if file is None or not file.exists():
        return Database(url, create=False, retry_s=_WAIT_S)
    try:
        return UnwritableDatabase(url)
    except OtherSchema:
        if not (is_own(file) and can_be_written(file)):
            raise
    Database(url, create=False, retry_s=_WAIT_S).close()
    return UnwritableDatabase(url)


def open_for_writing(url: str) -> Database:
    """Open a database that ``open_for_reading`` took, to prune it. Raises UserError where it is read-only."""
    file = database_url.file_of(url)
    if file is not None and not can_be_written(file):
        raise UserError(f"{file} cannot be written", hint="take a copy that can be")
    return Database(url, create=False, retry_s=_WAIT_S)
