"""Check of the file system under an SQLite database.

WAL needs memory shared between processes and working locks, which network file systems lack
(https://www.sqlite.org/wal.html).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from trinity_compat.common.errors import UserError

ALLOWED = "TRINITY_COMPAT_ANY_FILESYSTEM"  # environment variable that turns the check off
_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = ("nfs", "nfs3", "nfs4", "cifs", "smb3", "smbfs", "afs", "ncpfs")
_OVER_FUSE = ("sshfs", "s3fs", "gcsfuse", "mount-s3", "goofys", "rclone", "davfs")


def refuse_network(database: Path) -> None:
    """Raises UserError for a database on a network file system."""
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
