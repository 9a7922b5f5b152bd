"""A run's folder: where everything lies, who may use it, and what becomes of an earlier run there.

config/{launch.json,verl.yaml,trinity.yaml,audit.json,run.json}   buffer/experiences.db
monitor/tensorboard/{trainer,explorer}   log/{trainer,explorer,…}.log
global_step_N/   latest_checkpointed_iteration.txt
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trinity_compat import file_modes
from trinity_compat.checkpoint_folders import MARKER, last_step
from trinity_compat.errors import UserError
from trinity_compat.nearest import nearest, question
from trinity_compat.runtime.job.process_identity import identity_of
from trinity_compat.secret import without_passwords
from trinity_compat.spec import RunSpec
from trinity_compat.writing import write_text

_FOLDERS = ("config", "buffer", "monitor/tensorboard", "log")
_JOBS = 5  # that are named beside one that isn't there
_SIDES = {name: (name,) for name in ("train", "explore", "bench", "serve")}


@dataclass(frozen=True, slots=True)
class JobDir:
    """Paths of one job. Nothing is created by asking for a path."""

    root: Path

    @property
    def spec_path(self) -> Path:
        """What the explorer and the trainer read."""
        return self.root / "config" / "run.json"

    @property
    def default_database_url(self) -> str:
        """SQLite inside the job, unless the run names another database."""
        return f"sqlite:///{self.root / 'buffer' / 'experiences.db'}"

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
        """Another one after each checkpoint, also one of the same step; None without one."""
        try:
            found = (self.root / MARKER).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    @property
    def umask(self) -> int:
        """Of the processes that write here."""
        return file_modes.umask_of(self.root)

    def create(self, folders: Sequence[str] = _FOLDERS) -> None:
        """Make the folders, for this user alone unless the user has opened them."""
        file_modes.prepare(self.root, folders, existing=(*_FOLDERS, "global_step_*", MARKER))

    def exists(self) -> bool:
        """Whether an earlier run wrote here."""
        return self.spec_path.exists() or (self.root / "buffer").exists()

    def write_config(self, texts: Mapping[str, str]) -> None:
        """Write ``config/NAME`` for every entry, each whole or not; a text with a password in a URL for
        this user's eyes only."""
        for name, text in texts.items():
            mode = None if without_passwords(text) == text else 0o600
            write_text(self.root / "config" / name, text, mode=mode)

    def load_spec(self) -> RunSpec:
        """The spec of the run that lies here. Raises UserError when there is none."""
        if not self.root.exists():
            raise UserError(f"{self.root} does not exist", hint=self._near())
        if not self.spec_path.exists():
            raise UserError(
                f"{self.root} is not a job directory: config/run.json is missing", hint=self._inside()
            )
        return RunSpec.load(self.spec_path)

    def _near(self) -> str | None:
        """The job beside it with the most similar name; else those that there are."""
        jobs = sorted(path.parts[-3] for path in self.root.parent.glob("*/config/run.json"))
        told = ", ".join(jobs[:_JOBS]) + (", …" if len(jobs) > _JOBS else "")
        return question(nearest(self.root.name, jobs)) or (f"there are {told}" if jobs else None)

    def _inside(self) -> str | None:
        """The jobs in the folder: those of a run in stages."""
        found = sorted(path.parts[-3] for path in self.root.glob("*/config/run.json"))
        return f"name one of the jobs in it: {', '.join(found)}" if found else None


def set_aside(job: JobDir, *, now: time.struct_time | None = None) -> Path:
    """Rename an earlier job, its database included; returns the new path."""
    stamp = time.strftime("%Y%m%d%H%M%S", now or time.localtime())
    target = job.root.with_name(f"{job.root.name}_{stamp}")
    suffix = 0
    while target.exists():
        suffix += 1
        target = job.root.with_name(f"{job.root.name}_{stamp}_{suffix}")
    job.root.rename(target)
    return target


def lock_path(job: JobDir, side: str) -> Path:
    """The lock of ``side`` (train, explore, explore.N, bench, serve, start), which holds its owner's pid. It
    lies outside the job directory, so that a job can be renamed under its lock."""
    return job.root.parent / ".locks" / f"{job.root.name}.{side}"


def side_locks(job: JobDir) -> list[Path]:
    """The locks of the job's sides, held or not. Not a bench's: a run starts anew beside one."""
    sides = re.compile(re.escape(job.root.name) + r"\.(train|explore(\.\d+)?)")
    found = lock_path(job, "train").parent.glob("*")
    return sorted(path for path in found if sides.fullmatch(path.name))


def _open_lock(job: JobDir, side: str) -> int:
    path = lock_path(job, side)
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


@contextlib.contextmanager
def starting(job: JobDir) -> Iterator[None]:
    """One start at a time: waits for another one to have taken its sides and written what it leaves."""
    handle = _open_lock(job, "start")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(job: JobDir, mode: str, explorer: int | None = None) -> Iterator[bool]:
    """Hold the job for one side (``train``, ``explore``, or one ``explorer`` of several), both, or what may
    stand beside them while the run lives: a bench, an endpoint.

    Yields whether another side is running already. The kernel drops the locks with the process.
    Raises UserError naming the process that holds a wanted side.
    """
    wanted = _SIDES.get(mode, ("explore", "train"))
    with contextlib.ExitStack() as held:
        for side in wanted:
            alone = explorer is None or side != "explore"
            held.enter_context(_lock(job, side, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
            # Several explorers share the side, and each of them holds its own number.
            if not alone:
                held.enter_context(_lock(job, f"{side}.{explorer}", fcntl.LOCK_EX))
        mine = {lock_path(job, side) for side in (*wanted, f"explore.{explorer}")}
        yield any(_is_locked(path) for path in side_locks(job) if path not in mine)


@contextlib.contextmanager
def _lock(job: JobDir, side: str, how: int) -> Iterator[None]:
    handle = _open_lock(job, side)
    try:
        try:
            fcntl.flock(handle, how | fcntl.LOCK_NB)
        except OSError:
            holder = (os.read(handle, 128).decode(errors="replace").split() or ["?"])[0]
            raise UserError(
                f"another run (pid {holder}) holds the {side} side of {job.root}",
                hint="wait for it, end it, or give this one a directory of its own with --job",
            ) from None
        # For the message of another start, and for the studio's stop; the lock itself is the kernel's.
        os.ftruncate(handle, 0)
        os.pwrite(handle, identity_of(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def _is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
