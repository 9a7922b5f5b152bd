"""The jobs below a folder. A job is found by the scan or not at all: no path comes from a request."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from trinity_compat.buffer.store import SqlBuffer
from trinity_compat.errors import UserError
from trinity_compat.runtime.job.jobdir import JobDir
from trinity_compat.spec import RunSpec
from trinity_compat.studio.reading import ReadOnlyDatabase, open_read_only

_DEEPEST = 6  # folders below the studio's
_SCAN_EVERY_S = 3.0


class Job:
    """One job directory. ``name`` is its path below the studio's folder, unique there."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.dir = JobDir(root)
        self._opened: tuple[str, ReadOnlyDatabase, SqlBuffer] | None = None
        self._read: tuple[tuple[int, int, int], RunSpec] | None = None

    @property
    def spec(self) -> RunSpec:
        """Read again when its file has changed: a resume writes it anew. Raises UserError where it cannot
        be read."""
        try:
            found = self.dir.spec_path.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if self._read is None or self._read[0] != stamp:
                self._read = (stamp, self.dir.load_spec())
            return self._read[1]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"config/run.json of {self.name} cannot be read: {error}") from error

    def database(self) -> ReadOnlyDatabase:
        """Raises UserError while there is none."""
        return self._open()[0]

    def buffer(self) -> SqlBuffer:
        """Raises UserError while there is none."""
        return self._open()[1]

    def _open(self) -> tuple[ReadOnlyDatabase, SqlBuffer]:
        url = self.spec.database_url
        if self._opened is None or self._opened[0] != url:
            self._opened = (url, *open_read_only(url))
        return self._opened[1], self._opened[2]

    def signature(self) -> tuple[float, ...] | None:
        """Changes when the job's files do; None where they don't tell (a database elsewhere)."""
        folder = self.dir.root / "buffer"
        files = [folder / "experiences.db", folder / "experiences.db-wal", self.dir.spec_path]
        times = [path.stat().st_mtime if path.exists() else 0.0 for path in files]
        return tuple(times) if times[0] else None


class Jobs:
    """All jobs below ``root``, or the one that ``root`` is."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._found: dict[str, Job] = {}
        self._scanned = float("-inf")
        self._lock = threading.Lock()

    def all(self) -> Mapping[str, Job]:
        """Name → job, by name; scanned again every few seconds."""
        with self._lock:
            if time.monotonic() - self._scanned > _SCAN_EVERY_S:
                names = dict(_scan(self.root))
                self._found = {
                    name: self._found.get(name) or Job(name, path) for name, path in sorted(names.items())
                }
                self._scanned = time.monotonic()
            return self._found

    def get(self, name: str) -> Job | None:
        """The job of that name, None where the folder has none."""
        return self.all().get(name)


def _scan(root: Path) -> Iterator[tuple[str, Path]]:
    for folder, children, _ in os.walk(root):
        here = Path(folder)
        if (here / "config" / "run.json").is_file():
            children.clear()
            yield (here.name if here == root else here.relative_to(root).as_posix()), here
            continue
        deep = len(here.relative_to(root).parts) >= _DEEPEST
        children[:] = [] if deep else [name for name in children if not _passed_by(name)]


def _passed_by(name: str) -> bool:
    """Folders that hold no job. Links, which could lead out of the folder, os.walk does not follow."""
    return name.startswith(".") or name == "node_modules"
