"""Whether a path is its user's own: nobody else, root apart, can change what lies there.

The studio starts and ends nothing that others could have put in place. The rule is sshd's for its key files
(StrictModes): each part of the path belongs to the user or to root, and only they may write it. A folder that
others may write, on the way to the path, is allowed with the sticky bit, under which they cannot replace what
is not theirs (/tmp).
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

_MOST_LINKS = 40  # as the kernel follows
_ACL = "system.posix_acl_access"


def not_own(path: Path, *, or_root: bool = False) -> str:
    """'' or a sentence that names the part of ``path`` that others could change, and how.

    ``or_root``: what lies at the path's end may belong to root as well.
    """
    path = path.absolute()
    try:
        passed = list(_passed(path))
    except OSError as error:
        return f"{error.filename or path} cannot be inspected: {error.strerror}."
    last = len(passed) - 1
    for at, (place, found) in enumerate(passed):
        owners = (os.geteuid(), 0) if or_root or at < last else (os.geteuid(),)
        if found.st_uid not in owners:
            return f"{place} belongs to {_user(found.st_uid)}, not to you."
        sticky = at < last and stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if not sticky and _others_write(place, found):
            return f"{place} can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})."
    return ""


def not_own_tree(path: Path) -> str:
    """The same for a folder and all that lies in it, no link followed."""
    if problem := not_own(path):
        return problem
    for folder, folders, files in os.walk(path, onerror=None):
        for name in (*folders, *files):
            place = Path(folder) / name
            try:
                found = place.lstat()
            except FileNotFoundError:  # a run that lives removes some
                continue
            if found.st_uid != os.geteuid():
                return f"{place} belongs to {_user(found.st_uid)}, not to you."
            if not stat.S_ISLNK(found.st_mode) and _others_write(place, found):
                return f"{place} can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})."
    return ""


def _passed(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Each folder and link on the way to ``path`` in the kernel's order; then again what lies at its end."""
    at, left, links = Path(path.anchor), list(reversed(path.parts[1:])), 0
    yield at, at.lstat()
    while left:
        name = left.pop()
        if name == "..":
            at = at.parent
            continue
        place = at / name
        found = place.lstat()
        yield place, found
        if not stat.S_ISLNK(found.st_mode):
            at = place
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = place.readlink()
        left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        at = Path(target.anchor) if target.is_absolute() else at
    yield at, at.lstat()


def _others_write(place: Path, found: os.stat_result) -> bool:
    if stat.S_ISLNK(found.st_mode):  # a link's own mode says nothing
        return False
    if found.st_mode & stat.S_IWOTH:
        return True
    if not found.st_mode & stat.S_IWGRP:
        return False
    return not _is_private(found.st_gid) or _has_acl(place)


def _is_private(gid: int) -> bool:
    """Whether a group is this user's alone, as most Linux systems make one for each (umask 002): the primary
    group, under the user's own name, which nobody else is in."""
    try:
        me, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    if me.pw_gid != gid or group.gr_name != me.pw_name or set(group.gr_mem) - {me.pw_name}:
        return False
    return all(user.pw_uid == me.pw_uid for user in pwd.getpwall() if user.pw_gid == gid)


def _has_acl(place: Path) -> bool:
    """With an access control list the group's bits say what any entry of it may have at most."""
    try:
        os.getxattr(place, _ACL)
    except OSError:
        return False
    return True


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
