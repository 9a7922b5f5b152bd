"""Permissions of a run's files: private to its user unless the user has opened the job's folder.

A first start closes the job's folder to others (0700), and leaves a mark. What is opened afterwards
(``chmod g+rx``, ``g+rwxs``) stays open: the umask of the run's processes follows the folder's mode. Only the
group can get the right to write.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from trinity_compat.common.path_ownership import check_job

PRIVATE = 0o077  # a umask: no access for other users
_NOT_FOR_ALL = 0o002
_MARK = Path("config", "private")
_MARK_TEXT = """\
The first run made this job's folder private (chmod go=). If you open it to other users, it remains open, and
new files get its permissions.
"""


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    """Use umask ``mask`` in the block; processes that are started inherit it."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def umask_of(root: Path) -> int:
    """Return the umask for processes that write into a job's folder, PRIVATE if it does not exist."""
    try:
        mode = root.stat().st_mode
    except OSError:
        return PRIVATE
    return PRIVATE & ~mode | _NOT_FOR_ALL


def users_umask() -> int:
    """Return this process's umask, with which only the group can get the right to write."""
    mask = os.umask(PRIVATE)
    os.umask(mask)
    return mask | _NOT_FOR_ALL


def prepare(root: Path, folders: Iterable[str]) -> None:
    """Create a job's folder and the ``folders`` in it. A folder that this user has made becomes private.

    Raises UserError for one that another user could have made or may write in (``path_ownership``).
    """
    with umask(users_umask()):
        root.parent.mkdir(parents=True, exist_ok=True)  # not the job's
    root.mkdir(mode=0o700, exist_ok=True)
    check_job(root)  # another user may have made it since the start looked
    mark = root / _MARK
    if not mark.exists() and root.stat().st_uid == os.geteuid():
        root.chmod(stat.S_IMODE(root.stat().st_mode) & ~PRIVATE)
    with umask(umask_of(root)):
        for name in (*folders, str(_MARK.parent)):
            (root / name).mkdir(parents=True, exist_ok=True)
        if not mark.exists():
            mark.write_text(_MARK_TEXT)


def ray_folder() -> Path:
    """Create a folder for a Ray, inside a private one that the caller removes afterwards.

    Ray puts sockets into its folder, and a socket's path has at most 107 bytes, so TMPDIR is not used. Ray
    also opens its folder to everybody (0777), which the private folder around it prevents.
    """
    return Path(tempfile.mkdtemp(prefix="tc-ray-", dir="/tmp"), "r")
