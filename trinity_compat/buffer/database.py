"""One database, SQLite or PostgreSQL: opening, transactions, retries, and what its errors mean."""

from __future__ import annotations

import functools
import os
import random
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError

from trinity_compat.buffer.errors import BufferError, BufferFull, BufferGone
from trinity_compat.buffer.migrations import LATEST, MIGRATIONS
from trinity_compat.common import database_url
from trinity_compat.common.errors import UserError
from trinity_compat.common.optional_packages import install_command
from trinity_compat.common.redaction import without_passwords

ALLOWED = "TRINITY_COMPAT_ANY_FILESYSTEM"  # environment variable that turns the check off
_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = ("nfs", "nfs3", "nfs4", "cifs", "smb3", "smbfs", "afs", "ncpfs")
_OVER_FUSE = ("sshfs", "s3fs", "gcsfuse", "mount-s3", "goofys", "rclone", "davfs")


def refuse_network(database: Path) -> None:
    """Raise UserError for a database on a network file system."""
    if os.environ.get(ALLOWED) or not _MOUNTS.exists():
        return
    kind = kind_of(database.parent, _MOUNTS.read_text())
    if kind in _NETWORK or kind.removeprefix("fuse.") in _OVER_FUSE:
        raise UserError(
            f"{database} lies on a network file system ({kind}), where SQLite's locks don't hold",
            hint="write --database postgresql+psycopg://USER@HOST/NAME, or a local file:"
            f" --database sqlite:////local/disk/experiences.db ({ALLOWED}=1 allows it all the same)",
        )


def kind_of(folder: Path, mounts: str) -> str:
    """Type of the file system of ``folder``, by the text of /proc/self/mountinfo; "" for none."""
    found: tuple[int, str] = (-1, "")
    place = folder.resolve()
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4]))  # a space: \040
        if place.is_relative_to(point) and len(point.parts) >= found[0]:  # of equal ones the last is on top
            found = (len(point.parts), kinds[0])
    return found[1]


T = TypeVar("T")
RETRY_S = 60.0  # for a lost connection, or a database that another program has locked

# PostgreSQL answers that a second try can fix: deadlock, serialization, shutdown, start-up, lost connection.
_PASSING = ("40001", "40P01", "57P01", "57P02", "57P03", "08")
_REFUSED = ("28", "3D000", "42501")  # password, no such database, no right to it
# libpq reports a refused connection without a code, as text only.
_REFUSED_TEXT = ("does not exist", "authentication failed", "no pg_hba.conf entry", "translate host name")
_FULL = ("53100",)
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_MISMATCH")
_ODD_SCHEMA = ("no such table", "no such column", "has no column", "malformed", "unsupported", "to UTF-8")
WITHOUT_IT = (
    "put a copy back, or move the file away with its -wal and -shm: the same command then goes on from the"
    " newest checkpoint, and answers that waited for training are made again"
)
_TAKEN = ("too many clients", "remaining connection slots", "too many connections")
_POOL = 4  # connections that a process keeps; it has more only for a moment
_MORE = (
    f"each explorer, trainer and studio holds up to {_POOL} connections: raise max_connections "
    "(postgresql.conf), or end what else uses the server, and run the same command again"
)
# libpq's own words. An idle connection that a NAT or a firewall would forget says something every 30 s; one
# that was dropped in silence fails after 60 s at most, and the transaction is run again on a new one.
_STAYS: dict[str, object] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_LOCK = 0x7472_6D63  # advisory lock under which migrations run


class Database:
    """Transactions on one database, with retries of a lost connection for ``retry_s`` seconds.

    After an SQLite file was deleted, moved or replaced, every transaction raises BufferGone. SQLite itself
    would go on writing to the unlinked file.
    """

    _inode: tuple[int, int] | None = None  # device and inode of the SQLite file that was opened

    def __init__(self, url: str, *, create: bool = True, retry_s: float = RETRY_S) -> None:
        self.url = _parse(url)
        self.dialect = self.url.get_backend_name()
        self.retry_s = retry_s
        self._check_file(create)
        self.engine = self._make_engine()
        try:
            self.run(lambda conn: None, write=False)
            self._inode = self._found_inode()
            if self.run(self._version, write=False) != LATEST:
                if not create and self.run(self._version, write=False) == 0:
                    raise UserError(f"no buffer in {self.name}", hint="is this the run's database?")
                self.run(self._upgrade)
        except BaseException:
            self.engine.dispose()
            raise

    def run(self, work: Callable[[sa.Connection], T], *, write: bool = True) -> T:
        """Run ``work`` in one transaction, and again after a temporary fault: it must be safe to repeat."""
        deadline = time.monotonic() + self.retry_s
        pause = 0.02
        while True:
            self._check_inode()
            try:
                with self.transaction(write=write) as conn:
                    return work(conn)
            except DBAPIError as error:
                self._check_inode()
                if not self._passing(error) or time.monotonic() > deadline:
                    raise self._explain(error) from error
            except UnicodeDecodeError as error:  # SQLite's message quotes a damaged schema
                raise self._damaged("its bytes are not text") from error
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(1.0, pause * 2)

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[sa.Connection]:
        """Open one transaction. On SQLite it takes the write lock at once, so that reading first is safe."""
        with self.engine.connect() as plain:
            conn = plain.execution_options(write=write)
            with conn.begin():
                yield conn

    def now(self, conn: sa.Connection) -> float:
        """Return the time of the database's clock (SQLite: of this machine's), in seconds since 1970."""
        if self.dialect == "sqlite":
            return time.time()
        return float(conn.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one())

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    # -- opening ----------------------------------------------------------------------------

    @functools.cached_property
    def file(self) -> Path | None:
        """The SQLite file; None for a server."""
        return Path(str(self.url.database)).absolute() if self.dialect == "sqlite" else None

    def _found_inode(self) -> tuple[int, int] | None:
        if self.file is None:
            return None
        found = os.stat(self.file)  # noqa: PTH116 at every transaction
        return found.st_dev, found.st_ino

    def _check_inode(self) -> None:
        """Raise BufferGone where the file is not the one that was opened."""
        if self._inode is None:
            return
        try:
            if self._found_inode() == self._inode:
                return
            what = "was replaced by another file"
        except (FileNotFoundError, NotADirectoryError):
            what = "was deleted or moved"
        except OSError:
            return  # SQLite reports the disk's error
        raise BufferGone(
            f"the database {self.file} {what} while it was used",
            hint="put it back if it was moved, and run the same command again: it goes on from the newest"
            " checkpoint; without the database the answers that waited for training are made again",
        )

    def _check_file(self, create: bool) -> None:
        path = self.file
        if path is None:
            return
        refuse_network(path)
        if create:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"{path} cannot be made: {error.strerror} ({error.filename})") from error
        elif not path.exists():
            raise UserError(f"no buffer at {path}", hint="give the run's buffer/experiences.db")
        if path.exists() and not (path.is_file() and _looks_like_sqlite(path)):
            raise UserError(f"{path} is not an SQLite database: it is damaged", hint=WITHOUT_IT)

    def _make_engine(self) -> sa.Engine:
        if self.dialect == "sqlite":
            engine = sa.create_engine(self.url, creator=self._connect)
            sa.event.listen(engine, "connect", _prepare_sqlite)
            sa.event.listen(engine, "begin", _begin_sqlite)
            return engine
        connect = {**_STAYS, **self.url.query, "cursor_factory": _binary_cursor()}
        return sa.create_engine(self.url, connect_args=connect, pool_size=_POOL)

    def _connect(self) -> sqlite3.Connection:
        # Once opened, the file is never made again: an empty one in its place would look like a
        # fresh database.
        place, mode = quote(os.fsencode(str(self.file))), "rwc" if self._inode is None else "rw"
        return sqlite3.connect(
            f"file:{place}?mode={mode}",
            uri=True,
            timeout=self.retry_s,
            isolation_level=None,
            check_same_thread=False,
        )

    def _version(self, conn: sa.Connection) -> int:
        """The schema's number, 0 for an empty database. Raises UserError for a foreign or newer one."""
        tables = set(sa.inspect(conn).get_table_names())
        if "schema_migrations" not in tables:
            if tables:
                raise UserError(
                    f"{self.name} holds another program's tables ({', '.join(sorted(tables)[:4])})",
                    hint="give the buffer a database of its own",
                )
            return 0
        number = int(conn.exec_driver_sql("SELECT max(number) FROM schema_migrations").scalar_one() or 0)
        if number > LATEST:
            raise UserError(
                f"{self.name} has schema {number}; this trinity-compat knows up to {LATEST}",
                hint="open it with the version that wrote it, or a newer one",
            )
        return number

    def _upgrade(self, conn: sa.Connection) -> None:
        if self.dialect == "postgresql":
            conn.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        done = self._version(conn)
        if done == 0:
            conn.exec_driver_sql(
                "CREATE TABLE schema_migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL)"
            )
        for migration in MIGRATIONS[done:]:
            for statement in migration.render(self.dialect):
                conn.exec_driver_sql(statement)
            entry = sa.text("INSERT INTO schema_migrations (number, name) VALUES (:number, :name)")
            conn.execute(entry, {"number": migration.number, "name": migration.name})

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self.url.render_as_string(hide_password=True)

    # -- errors -----------------------------------------------------------------------------

    def _passing(self, error: DBAPIError) -> bool:
        if self.dialect == "sqlite":
            return getattr(error.orig, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
        state = getattr(error.orig, "sqlstate", None)
        if state is None:  # the client's own: not there yet, reset, closed in the middle
            return isinstance(error, sa.exc.OperationalError) and not _refused(str(error.orig))
        return state.startswith(_PASSING)

    def _explain(self, error: DBAPIError) -> Exception:
        code = str(getattr(error.orig, "sqlstate", None) or getattr(error.orig, "sqlite_errorname", ""))
        if (
            code in _FULL
            or code == "SQLITE_FULL"
            or (code.startswith("SQLITE_IOERR") and self._free() < 1 << 20)
        ):
            return self._full()
        text = str(error.orig).strip()
        odd = code.startswith(_DAMAGED) or any(part in text for part in _ODD_SCHEMA)
        if odd and self.dialect == "sqlite":
            return self._damaged(text)
        if code.startswith(_REFUSED) or (not code and _refused(text)):
            return UserError(f"{self.name}: {text}", hint="check the database's name, user and password")
        if not code and isinstance(
            error, sa.exc.ProgrammingError
        ):  # libpq's, of an option that it does not know
            return UserError(f"{self.name}: {text}", hint="check the URL's parameters, after the ?")
        if self.dialect == "sqlite" and self._passing(error):
            return BufferError(
                f"the buffer {self.file} was locked by another program for {self.retry_s:.0f} s",
                hint=f"`fuser -v {self.file}` names the programs that have it open; end the one that locks"
                " it, and run the same command again: what was acknowledged is kept",
            )
        if isinstance(error, sa.exc.OperationalError) or self._passing(error):
            hint = _MORE if any(part in text for part in _TAKEN) else None
            return BufferError(f"the buffer at {self.name} is out of reach: {text}", hint=hint)
        return error

    def _damaged(self, what: str) -> UserError:
        return UserError(
            f"{self.file or self.name} is damaged, or was not written by trinity-compat: {what}",
            hint=WITHOUT_IT if self.file else None,
        )

    def _full(self) -> BufferFull:
        hint = "free some space and run the same command again: what was acknowledged is kept"
        if self.dialect == "sqlite":
            free = self._free() / 2**20
            return BufferFull(
                f"no space left for the buffer {self.url.database} ({free:.0f} MiB free)", hint=hint
            )
        return BufferFull(f"the disk of the database server {self.name} is full", hint=hint)

    def _free(self) -> int:
        return (
            shutil.disk_usage(Path(self.url.database or ".").parent).free if self.dialect == "sqlite" else 0
        )


def _refused(text: str) -> bool:
    return any(part in text for part in _REFUSED_TEXT)


def check_url(url: str) -> None:
    """Raise UserError for a URL that no buffer can have."""
    _parse(url)


def _parse(url: str) -> sa.URL:
    if (file := database_url.file_of(url)) is not None:
        return sa.URL.create("sqlite", database=str(file))
    try:
        parsed = sa.make_url(url)
        if parsed.get_backend_name() == "sqlite":
            raise ArgumentError("no file, or a driver")
    except (ArgumentError, ValueError) as error:  # ValueError: a port that is not a number
        raise UserError(
            f"{without_passwords(url)!r} is not a database URL",
            hint="sqlite:////abs/path.db or postgresql+psycopg://user@host/db",
        ) from error
    if parsed.get_backend_name() != "postgresql":
        raise UserError(
            f"{parsed.get_backend_name()} is not supported", hint="use sqlite:/// or postgresql+psycopg://"
        )
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise UserError("PostgreSQL needs psycopg", hint=install_command("postgres")) from error
    return parsed.set(drivername="postgresql+psycopg")


def _binary_cursor() -> type[Any]:
    """Results in PostgreSQL's binary form: as text, token bytes come twice as long, in hexadecimal."""
    import psycopg

    class BinaryCursor(psycopg.Cursor[Any]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.format = psycopg.pq.Format.BINARY

    return BinaryCursor


def _looks_like_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(15) in (b"", b"SQLite format 3")


def _prepare_sqlite(raw: sqlite3.Connection, _: object) -> None:
    """WAL lets readers and the writer work at once; FULL makes an acknowledged write outlive a power cut."""
    if raw.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        if not raw.execute("PRAGMA page_count").fetchone()[0]:
            raw.execute("PRAGMA page_size=8192")
            raw.execute("PRAGMA auto_vacuum=INCREMENTAL")
        raw.execute("PRAGMA journal_mode=WAL")
    raw.execute("PRAGMA synchronous=FULL")
    raw.execute("PRAGMA cache_size=-65536")


def _begin_sqlite(conn: sa.Connection) -> None:
    # Deferred, a transaction that reads before it writes fails when another one wrote between.
    write = conn.get_execution_options().get("write", True)
    conn.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
