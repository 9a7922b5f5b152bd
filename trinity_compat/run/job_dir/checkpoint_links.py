"""Links from the script's ``trainer.default_local_dir`` to the job's checkpoints.

Later steps of the script, and ``model_merger`` calls, look for checkpoints there. A free folder becomes a
link to the job. Where the folder holds other things, or the job itself, each checkpoint is linked into it as
it is written, and a link ``.trinity-compat-job`` names the job. A real file or folder is never replaced. One
running job at a time uses the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.common.paths import from_home
from trinity_compat.job.checkpoints import MARKER
from trinity_compat.run.job_dir.job_dir import JobDir, holder

_WHOSE = ".trinity-compat-job"


class CheckpointLinks:
    """The links of one run: ``begin`` once the job directory exists, then ``update`` until after the run.

    Nothing is linked for ``wanted`` None, a remote place, or the job itself. ``say`` prints lines.
    """

    def __init__(self, job: JobDir, wanted: str | None, *, cwd: Path, say: Callable[[str], None]) -> None:
        self._job, self._wanted, self._say = job, wanted, say
        self._folder = None if not wanted or "://" in wanted else cwd / from_home(wanted)
        self._each = False
        self._told: set[Path] = set()

    def check(self) -> None:
        """Raise UserError where the folder is another running job's, or shows its checkpoints."""
        if self._folder is None:
            return
        for named in (self._folder, self._folder / _WHOSE):
            other = JobDir(named.resolve())
            # A stage's job lies in that of its run, which the same command holds.
            if self._job.root.is_relative_to(other.root) or (pid := holder(other)) is None:
                continue
            raise UserError(
                f"trainer.default_local_dir={self._wanted} is in use: the run in {other.root} (pid {pid})"
                " links its checkpoints there",
                hint="`--set trainer.default_local_dir=DIR` gives this one another folder",
            )

    def begin(self) -> None:
        """Link the folder, or settle that each checkpoint is linked. Raises UserError as ``check``."""
        folder, root = self._folder, self._job.root
        if folder is None or folder.resolve() == root:
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.parent):
            self.check()
            # An earlier job's link: its script shall find this job's checkpoints now.
            if folder.is_symlink() and _is_of_a_run(folder):
                folder.unlink()
            elif folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()
            if folder.is_dir():
                self._each = True
                with contextlib.suppress(OSError):  # `update` says what is wrong there
                    (folder / _WHOSE).unlink(missing_ok=True)
                    (folder / _WHOSE).symlink_to(root)
                self._say(f"checkpoints: each one is linked into {folder} as it is written")
                self.update()
            elif folder.exists():
                self._say(f"checkpoints: {folder} is a file, so they go to {root} only")
            else:
                folder.symlink_to(root, target_is_directory=True)
                self._say(f"checkpoints: {folder} → {root}")

    def update(self) -> None:
        """Link what is new, and drop links to checkpoints that are gone. Never raises for the disk."""
        if not self._each or self._folder is None:
            return
        try:
            for link in (*self._folder.glob("global_step_*"), self._folder / MARKER):
                if link.is_symlink() and not link.exists() and _is_of_a_run(link):
                    link.unlink()
            for path in _written(self._job.root):
                self._link(self._folder / path.name, path)
        except OSError as error:
            self._tell_once(self._folder, f"checkpoints: cannot link into {self._folder}: {error}")

    def _link(self, link: Path, path: Path) -> None:
        # Another job's checkpoint of the same step.
        if link.is_symlink() and link.readlink() != path and _is_of_a_run(link):
            link.unlink()
        if link.is_symlink() and link.readlink() == path:
            return
        if link.is_symlink() or link.exists():
            self._tell_once(link, f"checkpoints: {link} existed before and is kept; this run's is {path}")
            return
        link.symlink_to(path)

    def _tell_once(self, about: Path, text: str) -> None:
        if about not in self._told:
            self._told.add(about)
            self._say(text)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a lock on ``folder``, so that one start at a time reads and changes its links.

    Without a lock on file systems that have none (NFS).
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _written(root: Path) -> Iterator[Path]:
    yield from sorted(root.glob("global_step_*"))
    if (root / MARKER).exists():
        yield root / MARKER


def _is_of_a_run(link: Path) -> bool:
    """Return whether a link leads to a job of ours, or nowhere: such a one may be replaced."""
    target = link.parent / link.readlink()
    jobs = (target, target.parent)
    return not link.exists() or any((job / "config" / "run.json").exists() for job in jobs)
