"""A run's folder: where everything lies, who may use it, and what becomes of an earlier run there.

config/{launch,environment,audit,run}.json config/{verl,trinity}.yaml   buffer/experiences.db
monitor/tensorboard/{trainer,explorer}   log/{trainer,explorer,…}.log
global_step_N/   latest_checkpointed_iteration.txt   .locks/

A job is one thing by whatever path it is named: links and ``..`` are followed where a path comes in
(``resolved``), and the locks inside it are the same files through a bind mount.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trinity_compat.common import database_url, file_modes, regular_files
from trinity_compat.common.atomic_write import write_text
from trinity_compat.common.errors import UserError
from trinity_compat.common.paths import from_home
from trinity_compat.common.redaction import without_passwords
from trinity_compat.common.suggestions import nearest, question
from trinity_compat.job.checkpoints import MARKER, last_step
from trinity_compat.job.run_spec import RunSpec

_FOLDERS = ("config", "buffer", "monitor/tensorboard", "log")
_JOBS = 5  # names in the hint for a missing job
_LOCKS = ".locks"
_TRIES = 10  # to get a lock: another process may be testing it at that moment
_PAUSE_S = 0.02  # between them
# Folders of the job that carry a side's lock too: lock files may be deleted under a run, these end it.
_FOLDER_OF = {"train": "config", "explore": "log", "bench": "monitor", "serve": "monitor/tensorboard"}
_SIDES = {name: (name,) for name in ("train", "explore", "bench", "serve")}


def resolved(path: str | Path, cwd: Path | None = None) -> Path:
    """A job's folder as a user names it, with ``~``, links and ``..`` followed.

    Raises UserError for a path that no folder can have.
    """
    try:
        found = ((cwd or Path.cwd()) / from_home(str(path))).resolve()
        str(found).encode()  # config/run.json and the database's URL are UTF-8
        if "${" in str(found):
            raise ValueError("veRL's configuration, which names it, takes ${ for a reference")
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links is a RuntimeError
        raise UserError(f"{str(path)!r} cannot be a job's folder: {error}") from error
    return found


@dataclass(frozen=True, slots=True)
class JobDir:
    """Paths of one job. Nothing is created by asking for a path."""

    root: Path

    @classmethod
    def at(cls, path: str | Path) -> JobDir:
        """The job that a user names (``resolved``)."""
        return cls(resolved(path))

    @property
    def spec_path(self) -> Path:
        """The file that explorer and trainer read."""
        return self.root / "config" / "run.json"

    @property
    def default_database_url(self) -> str:
        """SQLite inside the job, unless the run names another database."""
        return database_url.of_file(self.root / "buffer" / "experiences.db")

    def log(self, name: str) -> Path:
        """The log of one process."""
        return self.root / "log" / f"{name}.log"

    def tensorboard(self, role: str) -> Path:
        """The event files of one side."""
        return self.root / "monitor" / "tensorboard" / role

    @property
    def latest_checkpoint(self) -> int | None:
        """The veRL step of the checkpoint that a resume continues from; None without one."""
        return last_step(self.root)

    @property
    def checkpoint_mark(self) -> tuple[int, int] | None:
        """A mark that changes with each checkpoint, also one of the same step; None without one."""
        try:
            found = (self.root / MARKER).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    @property
    def umask(self) -> int:
        """The umask of the processes that write here."""
        return file_modes.umask_of(self.root)

    def create(self, folders: Sequence[str] = _FOLDERS) -> None:
        """Make the folders, for this user alone unless the user has opened them."""
        file_modes.prepare(self.root, folders)

    def exists(self) -> bool:
        """Return whether an earlier run wrote here."""
        return self.spec_path.exists() or (self.root / "buffer").exists()

    def write_config(self, texts: Mapping[str, str]) -> None:
        """Write ``config/NAME`` for every entry, each atomically.

        Only this user may read a text that has a password in a URL.
        """
        for name, text in texts.items():
            mode = None if without_passwords(text) == text else 0o600
            write_text(self.root / "config" / name, text, mode=mode)

    def recorded_release(self) -> str | None:
        """The veRL release whose defaults the last start's launch had; None where none is recorded."""
        try:
            found = json.loads(regular_files.followed_text(self.root / "config" / "launch.json"))
            release = found.get("verl_version")
        except (OSError, ValueError, AttributeError, RecursionError):
            return None
        return release if isinstance(release, str) else None

    def load_spec(self) -> RunSpec:
        """The spec of the run that lies here. Raises UserError when there is none."""
        if not self.root.exists():
            # A hint: the neighbouring job with the most similar name, else all of them.
            jobs = sorted(path.parts[-3] for path in self.root.parent.glob("*/config/run.json"))
            listed = ", ".join(jobs[:_JOBS]) + (", …" if len(jobs) > _JOBS else "")
            raise UserError(
                f"{self.root} does not exist",
                hint=question(nearest(self.root.name, jobs)) or (f"there are {listed}" if jobs else None),
            )
        if not self.spec_path.exists():
            inside = sorted(path.parts[-3] for path in self.root.glob("*/config/run.json"))  # of stages
            raise UserError(
                f"{self.root} is not a job directory: config/run.json is missing",
                hint=f"name one of the jobs in it: {', '.join(inside)}" if inside else None,
            )
        return RunSpec.load(self.spec_path)

    def load_started_spec(self) -> RunSpec:
        """The spec of a run that has started. Raises UserError where there is none, or no database yet."""
        spec = self.load_spec()
        file = database_url.file_of(spec.database_url)
        if file is not None and not file.exists():
            raise UserError(f"{self.root} has no database yet ({file}): its run has not started")
        return spec


def set_aside(job: JobDir, *, now: time.struct_time | None = None) -> Path:
    """Rename an earlier job, its database included; returns the new path.

    The locks that are held on the job stay with its old path. Raises UserError for a mount point, which no
    process can rename.
    """
    stamp = time.strftime("%Y%m%d%H%M%S", now or time.localtime())
    target = job.root.with_name(f"{job.root.name}_{stamp}")
    suffix = 0
    while target.exists():
        suffix += 1
        target = job.root.with_name(f"{job.root.name}_{stamp}_{suffix}")
    try:
        job.root.rename(target)
    except OSError as error:
        raise UserError(
            f"the earlier job {job.root} cannot be renamed: {error.strerror}",
            hint="give this one a directory of its own with --job; a mount point needs one below it",
        ) from error
    if (locks := target / _LOCKS).is_dir():
        job.root.mkdir()
        locks.rename(job.root / _LOCKS)
    return target


def lock_path(job: JobDir, side: str) -> Path:
    """The lock file of ``side`` beside the job; it holds its owner's pid.

    Sides are train, explore, explore.N, bench, serve and start. The file stays when the job is renamed or
    deleted.
    """
    return job.root.parent / _LOCKS / f"{job.root.name}.{side}"


def inner_lock_path(job: JobDir, side: str) -> Path:
    """The same lock inside the job: the same file through a bind mount, or after the job was moved."""
    return job.root / _LOCKS / side


def side_locks(job: JobDir) -> list[Path]:
    """Return the locks of the job's sides, held or free, without a bench's, which works beside a run."""
    sides = r"(train|explore(\.\d+)?)"
    outer, inner = lock_path(job, "train").parent, inner_lock_path(job, "train").parent
    name = re.compile(re.escape(job.root.name) + rf"\.{sides}")
    found = [path for path in outer.glob("*") if name.fullmatch(path.name)]
    return sorted([*found, *(path for path in inner.glob("*") if re.fullmatch(sides, path.name))])


def holder(job: JobDir) -> str | None:
    """The pid of a running job, as its lock says; None where no run holds one of its sides."""
    return next((_owner(path) for path in side_locks(job) if _is_locked(path)), None)


@contextlib.contextmanager
def starting(job: JobDir) -> Iterator[None]:
    """Hold the start of a job: another start waits until this one has written its files."""
    with _held(job, "start", fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def locked(job: JobDir, mode: str, explorer: int | None = None) -> Iterator[bool]:
    """Hold the locks of a mode: one side, both, or those of bench and serve.

    ``explorer``: one of several explorers, which share the side. Yields whether another side is running
    already. The kernel drops the locks with the process. Raises UserError naming the process that holds a
    wanted side.
    """
    wanted = _SIDES.get(mode, ("explore", "train"))
    with contextlib.ExitStack() as held:
        for side in wanted:
            alone = explorer is None or side != "explore"
            held.enter_context(_lock(job, side, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
            # Several explorers share the side, and each of them holds its own number.
            if not alone:
                held.enter_context(_lock(job, f"{side}.{explorer}", fcntl.LOCK_EX))
        # A run whose lock files were deleted still holds these.
        with locked_folders(job, mode, explorer):
            pass
        sides = (*wanted, f"explore.{explorer}")
        mine = {path for side in sides for path in (lock_path(job, side), inner_lock_path(job, side))}
        others = [job.root / _FOLDER_OF[side] for side in ("train", "explore") if side not in wanted]
        yield any(_is_locked(path) for path in (*side_locks(job), *others) if path not in mine)


@contextlib.contextmanager
def locked_folders(job: JobDir, mode: str, explorer: int | None = None) -> Iterator[None]:
    """Hold the same sides by the job's folders, as far as they exist; arguments as ``locked``'s.

    To be entered once the job is created: one that is set aside takes its folders along. A file system
    without such locks has those of ``locked`` alone. Raises UserError where a run holds a side.
    """
    handles: list[int] = []
    try:
        for side in _SIDES.get(mode, ("explore", "train")):
            alone = explorer is None or side != "explore"
            with contextlib.suppress(OSError):
                handles.append(os.open(job.root / _FOLDER_OF[side], os.O_RDONLY | os.O_DIRECTORY))
                try:
                    fcntl.flock(handles[-1], (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise UserError(
                        f"another run holds the {side} side of {job.root}, and its lock files were deleted",
                        hint="wait for it, end it, or give this one a directory of its own with --job",
                    ) from None
        yield
    finally:
        for handle in handles:
            os.close(handle)


@contextlib.contextmanager
def _lock(job: JobDir, side: str, how: int) -> Iterator[None]:
    with _held(job, side, how | fcntl.LOCK_NB) as handles:
        for handle in handles:
            # For the message of another start, and for the studio's stop; the lock itself is the kernel's.
            os.ftruncate(handle, 0)
            os.pwrite(handle, identity_of(os.getpid()).encode(), 0)
        yield


@contextlib.contextmanager
def _held(job: JobDir, side: str, how: int) -> Iterator[list[int]]:
    """Both locks of a side, as handles.

    Raises UserError where another run has one, or the job cannot be written.
    """
    outer, inner = lock_path(job, side), inner_lock_path(job, side)
    handles: list[int] = []
    try:
        for path in (outer, inner):
            try:
                # The one inside is for those to whom the job's folder is open.
                handles.append(_locked_handle(path, how, job.umask if path == inner else None))
            except BlockingIOError:
                raise UserError(
                    f"another run (pid {_owner(path)}) holds the {side} side of {job.root}",
                    hint="wait for it, end it, or give this one a directory of its own with --job",
                ) from None
            except OSError as error:
                # Around a mount point there may be nothing that can be written: the lock inside is enough.
                if path == inner:
                    raise UserError(
                        f"the job {job.root} cannot be written: {error.strerror}",
                        hint="give this run a directory of its own with --job",
                    ) from error
        yield handles
    finally:
        for handle in handles:
            os.close(handle)


def _locked_handle(path: Path, how: int, mask: int | None) -> int:
    """Return a handle that holds the lock. Raises BlockingIOError where another process holds it."""
    for tried in itertools.count(1):
        with file_modes.umask(file_modes.users_umask() if mask is None else mask):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, how)
            # While this waited, the job may have been set aside or deleted, and the lock with it.
            if _is_at(path, handle):
                return handle
            os.close(handle)
        except BlockingIOError:
            os.close(handle)
            if tried == _TRIES:
                raise
            time.sleep(_PAUSE_S)
        except BaseException:
            os.close(handle)
            raise
    raise AssertionError


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _owner(path: Path) -> str:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return "?"
    try:
        return (os.read(handle, 128).decode(errors="replace").split() or ["?"])[0]
    finally:
        os.close(handle)


def _is_locked(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # somebody else's could be a pipe
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def identity_of(pid: int) -> str:
    """``PID START COMMAND``, the content of a lock file.

    START counts clock ticks since the machine's start (proc(5): starttime); COMMAND is a digest, since a
    command line may hold a secret. Where the system has no /proc, or no such process, ``PID`` alone.
    """
    folder = Path("/proc") / str(pid)
    try:
        # The name, in parentheses, may hold spaces and parentheses of its own; the 22nd field is the start.
        start = (folder / "stat").read_bytes().rpartition(b")")[2].split()[19].decode()
        command = hashlib.sha256((folder / "cmdline").read_bytes()).hexdigest()[:16]
    except (OSError, IndexError):
        return str(pid)
    return f"{pid} {start} {command}"
