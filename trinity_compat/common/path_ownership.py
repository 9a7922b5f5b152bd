"""Ownership of paths: who else could have changed what this user reads or runs.

``not_own`` is strict. The studio starts and ends only processes whose files others could not have written.
The rule is sshd's for its key files (StrictModes): each part of the path belongs to the user or to root, and
only they may write it. A folder that others may write, on the way to the path, is allowed with the sticky
bit, under which they cannot replace what is not theirs (/tmp).

``check_job`` and ``check_checkpoint`` are for a run, whose user has named the folder. On a cluster, folders
above a job belong to a project and its group, so that the group and the owners of folders above are trusted
there; any other user of the machine is not.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from trinity_compat.common.errors import UserError

ANY_OWNER = "TRINITY_COMPAT_ANY_OWNER"  # environment variable that turns off the checks of a run
_MOST_LINKS = 40  # as the kernel follows
_ACL = "system.posix_acl_access"


def not_own(path: Path, *, or_root: bool = False) -> str:
    """Return '' or a sentence that names the part of ``path`` that others could change, and how.

    With ``or_root`` the file itself may belong to root as well.
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
            return _writable(place, found)
    return ""


def not_own_tree(path: Path) -> str:
    """Return the same for a folder and all its contents, without following links."""
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
                return _writable(place, found)
    return ""


def check_job(root: Path) -> None:
    """Raise UserError where another user has made a job's folder, or may write in it or in one above."""
    if problem := _open_to_others(root):
        _refuse(problem)


def check_checkpoint(folder: Path) -> None:
    """Raise UserError where another user has made a file of a checkpoint, or may replace one.

    Its pickles run as this user when they are loaded.
    """
    real = folder.resolve()
    inside = (Path(place) / name for place, dirs, files in os.walk(real) for name in (*dirs, *files))
    if problem := _open_to_others(real) or next(filter(None, map(_changeable, inside)), ""):
        _refuse(problem)


def _changeable(path: Path) -> str:
    """Return '' or why another user could have changed a file whose folder is this user's."""
    if path.is_symlink():
        return _open_to_others(path.resolve())
    found = path.lstat()
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to {_user(found.st_uid)}, not to you."
    return _writable(path, found) if found.st_mode & stat.S_IWOTH else ""


def _refuse(problem: str) -> None:
    if os.environ.get(ANY_OWNER):
        return
    raise UserError(
        problem.removesuffix("."),
        hint="name a folder of your own with --job DIR, or take the right away with chmod o-w. Others who can"
        " write there can replace checkpoints, whose content runs as you when it is loaded; if you trust them"
        f" with that, set {ANY_OWNER}=1",
    )


def _open_to_others(folder: Path) -> str:
    """Return '' or a sentence that names the first folder on the way that is not this user's to trust.

    ``folder`` itself, which need not exist, must be this user's or root's.
    """
    is_shared = False  # with the sticky bit, any user may have made what is in the folder before
    for place in (*reversed(folder.parents), folder):
        try:
            found = place.stat()
        except OSError:
            return ""
        if (is_shared or place == folder) and found.st_uid not in (os.geteuid(), 0):
            return f"{place} belongs to {_user(found.st_uid)}, not to you."
        is_open = bool(found.st_mode & stat.S_IWOTH)
        is_shared = is_open and bool(found.st_mode & stat.S_ISVTX)
        if is_open and (not is_shared or place == folder):
            return _writable(place, found)
    return ""


def _writable(place: Path, found: os.stat_result) -> str:
    return f"{place} can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})."


def _passed(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Each folder and link on the way to ``path`` in the kernel's order; then again what lies at its end."""
    at, remaining, links = Path(path.anchor), list(reversed(path.parts[1:])), 0
    yield at, at.lstat()
    while remaining:
        name = remaining.pop()
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
        remaining += reversed(target.parts[1:] if target.is_absolute() else target.parts)
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
    """Return whether a group is this user's private one, which most Linux systems create (umask 002).

    It is the primary group, has the user's name, and no other member.
    """
    import grp
    import pwd

    try:
        me, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    if me.pw_gid != gid or group.gr_name != me.pw_name or set(group.gr_mem) - {me.pw_name}:
        return False
    return all(user.pw_uid == me.pw_uid for user in pwd.getpwall() if user.pw_gid == gid)


def _has_acl(place: Path) -> bool:
    """Return whether the path has an access control list, which the group's bits limit."""
    try:
        os.getxattr(place, _ACL)
    except OSError:
        return False
    return True


def _user(uid: int) -> str:
    import pwd  # the module is read where no users are, in a web page

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
