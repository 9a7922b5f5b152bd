"""A real PostgreSQL server of one's own: private data folder, unix socket, no TCP port.

Debian's package (`make install-system`). The server runs as an ordinary user: it refuses to run as root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa

from trinity_compat.common.parent_watch import die_with_parent

SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "dynamic_shared_memory_type": "posix",
}


class Unavailable(Exception):
    """No PostgreSQL server; the text says why."""


def find_binaries() -> Path:
    """The folder of initdb and postgres. Raises Unavailable."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    on_path = shutil.which("initdb")
    if not folders and not on_path:
        raise Unavailable("no PostgreSQL server: make install-system")
    return folders[-1] if folders else Path(str(on_path)).resolve().parent


def take_away_what_killed_tests_left() -> None:
    for folder in Path("/tmp").glob("tcpg-*-*"):
        if not Path("/proc", folder.name.split("-")[1]).exists():
            shutil.rmtree(folder, ignore_errors=True)


class PostgresServer:
    """One server process and its data folder, both gone after ``close``."""

    def __init__(self, *, fsync: bool = True, connections: int = 60) -> None:
        self.settings = SETTINGS | {"max_connections": str(connections)}
        self.settings |= {} if fsync else {"fsync": "off"}
        self.binaries = find_binaries()
        self.user = "postgres" if os.geteuid() == 0 else None
        take_away_what_killed_tests_left()
        self.folder = Path(tempfile.mkdtemp(prefix=f"tcpg-{os.getpid()}-", dir="/tmp"))
        if self.user:
            shutil.chown(self.folder, self.user, self.user)
        self._as_user(
            [str(self.binaries / "initdb"), "-D", str(self.data), "-A", "trust", "-U", "tc", "-E", "UTF8"]
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://tc@/{database}?host={self.folder}"

    def new_database(self, name: str) -> str:
        """A fresh empty database's URL."""
        base = [str(self.binaries / "psql"), "-h", str(self.folder), "-U", "tc", "-d", "postgres", "-q", "-c"]
        self._as_user([*base, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'])
        self._as_user([*base, f'CREATE DATABASE "{name}"'])
        return self.url(name)

    def clean_database(self) -> str:
        """One database, emptied: quicker than a new one."""
        engine = sa.create_engine(self.url())
        with engine.begin() as conn:
            conn.exec_driver_sql("SET client_min_messages = warning")
            conn.exec_driver_sql("DROP SCHEMA public CASCADE")
            conn.exec_driver_sql("CREATE SCHEMA public")
        engine.dispose()
        return self.url()

    def start(self) -> None:
        """Start and wait until it answers. A killed one's shared memory may be in use for a moment."""
        deadline = time.monotonic() + 300
        self.process = self._spawn()
        ready = [str(self.binaries / "pg_isready"), "-q", "-h", str(self.folder)]
        while subprocess.run(ready).returncode != 0:
            if time.monotonic() > deadline:
                raise Unavailable((self.folder / "log").read_text()[-2000:])
            time.sleep(0.05)
            if self.process.poll() is not None:
                self.process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        settings = [word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")]
        command = [str(self.binaries / "postgres"), "-D", str(self.data), "-k", str(self.folder), *settings]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                user=self.user,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                # A pytest that is killed leaves no server. By "parent" the kernel means the main thread.
                preexec_fn=lambda: die_with_parent(signal.SIGQUIT),
            )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: fast shutdown. SIGQUIT: immediate. SIGKILL: the postmaster dies, its backends follow."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(300)
            self.process = None

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        self.stop(how)
        self.start()

    def close(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _as_user(self, command: list[str]) -> None:
        subprocess.run(
            command,
            user=self.user,
            check=True,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
