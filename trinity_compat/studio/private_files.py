"""Files of the studio's own that only this user may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from trinity_compat.studio import job_files


def cache_folder() -> Path:
    """Return the folder of the user's cache for what the studio cannot or should not write beside a job."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache.resolve() / "trinity-compat" / "studio"


def data_folder() -> Path:
    """Return the folder of the user's own data: what no run has and nothing else can make again."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return data.resolve() / "trinity-compat" / "studio"


def keep_private(path: Path) -> None:
    """Make the file, for this user's eyes, or take what lies there if it is a regular file.

    Raises OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        found = job_files.status(path)
    except FileNotFoundError:
        try:
            with job_files.folder(path.parent) as above:
                os.close(os.open(path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=above))
        except FileExistsError:  # another studio has just made it
            found = job_files.status(path)
        else:
            return
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o600)
