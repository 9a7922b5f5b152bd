"""Who may read what a run writes: its user alone, unless the user has opened the job's folder.

A first start closes the job's folder to others (0700), with what an earlier version left in it, and leaves a
mark. What is opened afterwards (``chmod g+rx``, ``g+rwxs``) stays open: the umask of the run's processes
follows the folder's mode. Only the group can get the right to write.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

PRIVATE = 0o077  # a umask: nothing for anybody else
_NOT_FOR_ALL = 0o002
_MARK = Path("config", "private")
_TOLD = """\
The first run that began here closed this job's folder to other users (chmod go=). Where you open it again it
stays open, and what runs write follows its mode.
"""


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    """Create files under ``mask`` for the time of the block; processes that are started inherit it."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def umask_of(root: Path) -> int:
    """The umask of the processes that write into a job's folder; PRIVATE where there is none."""
    try:
        mode = root.stat().st_mode
    except OSError:
        return PRIVATE
    return PRIVATE & ~mode | _NOT_FOR_ALL


def prepare(root: Path, folders: Iterable[str], *, existing: Iterable[str]) -> None:
    """Make a job's folder and the ``folders`` in it.

    ``existing``: patterns of what a version that left no mark may have written there; it is closed where it
    is this user's.
    """
    root.parent.mkdir(parents=True, exist_ok=True)  # not the job's: as the user's umask has it
    root.mkdir(mode=0o700, exist_ok=True)
    mark = root / _MARK
    if not mark.exists() and _is_own(root):
        _close(root)
        for path in (found for pattern in existing for found in root.glob(pattern)):
            _close_all(path)
    with umask(umask_of(root)):
        for name in (*folders, str(_MARK.parent)):
            (root / name).mkdir(parents=True, exist_ok=True)
        if not mark.exists():
            mark.write_text(_TOLD)


def ray_folder() -> Path:
    """A new folder for a Ray; what its user removes afterwards is the folder around it.

    Ray puts sockets below its folder and a socket's path holds 107 bytes: a short one, never TMPDIR. It also
    opens the folder and its session's to everybody (0777): nobody gets through the one around them.
    """
    return Path(tempfile.mkdtemp(prefix="tc-ray-", dir="/tmp"), "r")


def _close_all(top: Path) -> None:
    _close(top)
    if not top.is_symlink():
        for folder, below, files in os.walk(top):
            for name in (*below, *files):
                _close(Path(folder, name))


def _close(path: Path) -> None:
    """What a link names stays as it is. The job's folder is closed first, so that nobody can make one."""
    if path.is_symlink() or not _is_own(path):
        return
    mode = stat.S_IMODE(path.lstat().st_mode)
    if mode & PRIVATE:
        path.chmod(mode & ~PRIVATE)


def _is_own(path: Path) -> bool:
    return path.stat().st_uid == os.geteuid()
