"""A job's database, opened read-only: nothing that the studio does can write there or keep a lock."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from trinity_compat.buffer.database import LATEST, _parse
from trinity_compat.buffer.reading import UntrustedDatabase, connect_to_read
from trinity_compat.common.errors import UserError
from trinity_compat.common.untrusted_sqlite import ReadLimits
from trinity_compat.studio import job_files

T = TypeVar("T")
_WAIT_S = 2.0  # for a database that is locked just now
_LIMITS = ReadLimits(cpu_s=5.0)  # of a request; a page takes a tenth of a second


class ReadOnlyDatabase(UntrustedDatabase):
    """``Database`` that never migrates and refuses to write.

    A connection lives for one read, or those of one ``at_once``: opening one reads the whole WAL where no run
    keeps its index.

    ``job``: where the database lies in this folder, no link leads to it. Raises UserError where there is no
    database, or one of another schema, where it is damaged or hostile, and where a read takes too much.
    """

    limits = _LIMITS

    def __init__(self, url: str, job: Path) -> None:
        self.url = _parse(url)
        self.dialect = self.url.get_backend_name()
        self.retry_s = _WAIT_S
        self._inside = not outside(url, job)
        self._look_at_file()
        self._check_file(create=False)
        self.engine = self._make_engine()
        self._shared = threading.local()
        found = self.run(self._version, write=False)
        if found != LATEST:
            raise UserError(
                f"{self.name} has schema {found}, this studio reads {LATEST}",
                hint="`trinity-compat buffer stats` brings an older one up to date",
            )

    def run(self, work: Callable[[sa.Connection], T], *, write: bool = True) -> T:
        """``work`` in one short read. Raises PermissionError for anything that would write."""
        if write:
            raise PermissionError("the studio opens a job's database read-only")
        shared: sa.Connection | None = getattr(self._shared, "conn", None)
        if shared is None:
            return super().run(work, write=False)
        with self._explained():
            return work(shared)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Read in one transaction and on one connection inside the block, in this thread."""
        if getattr(self._shared, "conn", None) is not None:
            yield
            return
        with self._explained(), self.transaction(write=False) as conn:
            self._shared.conn = conn
            try:
                yield
            finally:
                self._shared.conn = None

    def _make_engine(self) -> sa.Engine:
        if self.dialect == "sqlite":
            return self._reading_engine(self._connect)
        arguments = {"connect_timeout": 5, "options": "-c default_transaction_read_only=on"}
        return sa.create_engine(self.url, connect_args=arguments, poolclass=sa.NullPool)

    @property
    def _file(self) -> Path:
        return Path(self.url.database or "").absolute()

    def _look_at_file(self) -> None:
        """Raises UserError where it is not there, or is in the job and no regular file without links."""
        if self.dialect != "sqlite":
            return
        try:
            if not self._inside:
                self._file.stat()
                return
            job_files.status(self._file)
        except FileNotFoundError as error:
            raise UserError(f"no buffer at {self._file}") from error
        except OSError as error:
            raise UserError(f"{error.filename or self._file}: {error.strerror}") from error

    def _connect(self) -> sqlite3.Connection:
        self._look_at_file()
        connection = connect_to_read(self._file, self.limits, timeout_s=_WAIT_S)
        try:
            # SQLite follows links before it opens, and says here where they led.
            connection.text_factory = bytes
            place = connection.execute("PRAGMA database_list").fetchone()[2]
            connection.text_factory = str
            if self._inside and place != os.fsencode(self._file):
                raise UserError(f"{self._file} is reached by a link: the studio follows none out of a job")
        except BaseException:
            connection.close()
            raise
        return connection


def outside(url: str, job: Path) -> bool:
    """Return whether a database is outside of the folder ``job``: on a server, or in another file."""
    parsed = _parse(url)
    place = Path(parsed.database or "").absolute()
    return parsed.get_backend_name() != "sqlite" or ".." in place.parts or not place.is_relative_to(job)
