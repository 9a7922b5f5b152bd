"""The jobs below a folder. A job is found by the scan or not at all: no path comes from a request."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from trinity_compat.buffer.store import Buffer
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import leaves
from trinity_compat.common.path_ownership import not_own
from trinity_compat.job.checkpoints import MARKER
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.studio import job_files
from trinity_compat.studio.folder_scan import FolderScan
from trinity_compat.studio.read_only_database import ReadOnlyDatabase, outside
from trinity_compat.studio.started_runs import StartedRun

_DEEPEST = 6  # folders below the studio's
# The files that tell of a change; in the folder of the last one lie the records of sides that start alone.
_SIGNS = (
    ("buffer", "experiences.db"),
    ("buffer", "experiences.db-wal"),
    ("config", "run.json"),
    ("log", "phases.json"),
    ("log", ""),
)
Signature = tuple[tuple[int, ...], ...]


class Job:
    """One job directory.

    ``name`` is its path below the studio's folder, unique there; ``root`` is free of links. Its files are
    read by ``job_files`` alone.
    """

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.dir = JobDir(root)
        self.resumed: StartedRun | None = None  # by this studio
        self._opened: tuple[str, ReadOnlyDatabase, Buffer] | None = None
        self._flat: tuple[RunSpec, Mapping[str, object]] | None = None
        self._read: tuple[tuple[int, int, int], RunSpec] | None = None

    @property
    def spec(self) -> RunSpec:
        """Read again when its file has changed: a resume writes it anew.

        Raises UserError where it cannot be read.
        """
        try:
            found = job_files.status(self.dir.spec_path)
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if self._read is None or self._read[0] != stamp:
                self._read = (stamp, RunSpec.of_text(job_files.text(self.dir.spec_path), self.dir.root))
            return self._read[1]
        except OSError as error:
            text = error.strerror or str(error)
            said = text if text.startswith("is ") else f"cannot be read: {text}"
            raise UserError(f"{error.filename or self.dir.spec_path} {said}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"config/run.json of {self.name} cannot be read: {error}") from error

    @property
    def copied_from(self) -> str:
        """The run's own place where this folder is a copy of it, else ''."""
        try:
            made_in = json.loads(job_files.text(self.dir.spec_path))["job_dir"]
            return "" if self.dir.root in (Path(made_in), Path(made_in).resolve()) else str(made_in)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return ""

    def database(self) -> ReadOnlyDatabase:
        """Raises UserError while there is none."""
        return self._open()[0]

    def buffer(self) -> Buffer:
        """Raises UserError while there is none."""
        return self._open()[1]

    def _open(self) -> tuple[ReadOnlyDatabase, Buffer]:
        url = self.spec.database_url
        if self._opened is None or self._opened[0] != url:
            # Another user's job must not choose which file or server this user's rights are used on.
            if outside(url, self.dir.root) and (problem := self.not_own()):
                raise UserError(f"its database lies outside the job and is not opened: {problem}")
            database = ReadOnlyDatabase(url, self.dir.root)
            self._opened = (url, database, Buffer(database))
        return self._opened[1], self._opened[2]

    def not_own(self) -> str:
        """'' where the job is this user's own; else a sentence that names what others could change."""
        places = (self.dir.root, self.dir.spec_path.parent, self.dir.spec_path)
        return next((problem for place in places if (problem := not_own(place))), "")

    @property
    def latest_checkpoint(self) -> int | None:
        """The veRL step that a resume continues from; None without one."""
        try:
            return int(job_files.text(self.dir.root / MARKER).strip())
        except (OSError, ValueError):
            return None

    def changed_at(self) -> float | None:
        """Return when its files last changed; None where they don't tell (a database elsewhere)."""
        found = self._statuses()
        return None if found[0] is None else max(one.st_mtime for one in found[:-1] if one is not None)

    def configuration(self) -> Mapping[str, object]:
        """Return veRL's configuration as dotted key → value. Raises UserError as ``spec``."""
        spec = self.spec
        if self._flat is None or self._flat[0] is not spec:
            self._flat = (spec, {key: value for key, value in leaves(spec.verl) if value != {}})
        return self._flat[1]

    def signature(self) -> Signature | None:
        """Changes when the job's files do; None where they don't tell (a database elsewhere)."""
        found = self._statuses()
        if found[0] is None:
            return None
        return tuple(
            () if one is None else (one.st_ino, one.st_mtime_ns, one.st_ctime_ns, one.st_size)
            for one in found
        )

    def _statuses(self) -> list[os.stat_result | None]:
        found = job_files.statuses(self.dir.root, _SIGNS)
        # Reading makes an empty write-ahead log.
        return [
            one if one is not None and (one.st_size or not file) else None
            for (_, file), one in zip(_SIGNS, found, strict=True)
        ]


class Jobs:
    """All jobs below ``root``, or the one that ``root`` is."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.scan = FolderScan(self._scanned)

    def all(self) -> Mapping[str, Job]:
        """Name → job, by name; scanned again every few seconds."""
        return self.scan.all()

    def get(self, name: str) -> Job | None:
        """The job of that name, None where the folder has none."""
        return self.scan.get(name)

    def _scanned(self, before: Mapping[str, Job]) -> Mapping[str, Job]:
        found = {}
        for name, place in sorted(_scan(self.root.resolve())):
            known = before.get(name)
            found[name] = known if known and known.dir.root == place else Job(name, place)
        return found


def _scan(root: Path) -> Iterator[tuple[str, Path]]:
    """(name, folder without links) of each job."""
    links: list[Path] = []
    places: set[Path] = set()
    for folder, children, _ in os.walk(root):
        here = Path(folder)
        if is_job(here):
            children.clear()
            places.add(here)
            yield shown_name(here.name if here == root else here.relative_to(root).as_posix()), here
            continue
        deep = len(here.relative_to(root).parts) >= _DEEPEST
        children[:] = (
            []
            if deep
            else [name for name in children if not (name.startswith(".") or name == "node_modules")]
        )
        links += [here / name for name in children if _is_own_link(here / name)]
    # A run with --job leaves a link to its job at the checkpoints' usual place. The job is listed once, by
    # its real place where that lies below the folder. A link to a folder of jobs is not followed.
    for link in sorted(links):
        place = Path(os.path.realpath(link))
        if place not in places and is_job(place):
            places.add(place)
            yield shown_name(link.relative_to(root).as_posix()), place


def is_job(folder: Path) -> bool:
    """Return whether a folder is a job."""
    try:
        return (folder / "config" / "run.json").is_file()
    except OSError:
        return False


def _is_own_link(path: Path) -> bool:
    """Return whether this user made the link: another's could lead out of the folder."""
    try:
        return path.is_symlink() and path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def shown_name(name: str) -> str:
    """Return a name that can be shown: a file's may hold bytes that are not UTF-8."""
    return os.fsencode(name).decode(errors="backslashreplace")
