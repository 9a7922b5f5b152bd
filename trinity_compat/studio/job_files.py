"""Files of a job, which may be somebody else's: regular files alone, and none through a link.

Paths are absolute, and free of links above the job (``Jobs`` resolves them).

All functions raise OSError; its ``strerror`` says what is wrong.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from trinity_compat.common.regular_files import OF_FILE, OF_FOLDER, SEARCH, folder, opened, refuse, status_in

_MOST = 64 << 20  # bytes of one text
_DEEPEST = 64  # parts of a path


def appended(path: Path) -> BinaryIO:
    """A regular file to write at its end; a new one is for this user alone."""
    with folder(path.parent) as above:
        handle = os.open(path.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | OF_FILE, 0o600, dir_fd=above)
    try:
        refuse(os.fstat(handle), path)
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "ab")


def text(path: Path) -> str:
    """Return the content of a regular file; bytes that are not UTF-8 are replaced."""
    with opened(path) as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise OSError(errno.EFBIG, f"is larger than {_MOST >> 20} MiB", str(path))
    return data.decode(errors="replace")


def status(path: Path) -> os.stat_result:
    """Return the status of a regular file without opening it."""
    with folder(path.parent) as above:
        found = status_in(above, path.name)
    refuse(found, path)
    return found


def statuses(root: Path, files: Sequence[tuple[str, str]]) -> list[os.stat_result | None]:
    """Return the status of each (folder, name) below ``root``: a regular file's, or a folder's for name ''.

    None for one that is not there, or not to be looked for.
    """
    found: dict[tuple[str, str], os.stat_result] = {}
    with contextlib.suppress(OSError), folder(root) as above:
        for name in dict.fromkeys(name for name, _ in files):
            with contextlib.suppress(OSError):
                handle = os.open(name, SEARCH | OF_FOLDER, dir_fd=above)
                try:
                    for key in (key for key in files if key[0] == name):
                        with contextlib.suppress(OSError):
                            found[key] = status_in(handle, key[1]) if key[1] else os.fstat(handle)
                finally:
                    os.close(handle)
    return [
        at if (at := found.get(key)) is not None and (not key[1] or stat.S_ISREG(at.st_mode)) else None
        for key in files
    ]


def is_there(path: Path) -> bool:
    """Return whether a regular file lies there that this user may look for."""
    try:
        status(path)
    except OSError:
        return False
    return True


def names(path: Path) -> list[str]:
    """Return the names in a folder, sorted; [] where it does not exist."""
    try:
        with folder(path, listed=True) as handle:
            return sorted(os.listdir(handle))  # noqa: PTH208 pathlib takes no handle
    except FileNotFoundError:
        return []


def state_of(path: Path, *, without: frozenset[str] = frozenset()) -> Iterator[tuple[str, int, int]]:
    """Yield (path, time of change, size) of each file below a folder, which may be absent.

    Raises OSError where a folder, or one below it, holds anything but folders and regular files, or names
    of ``without``.
    """
    if len(path.parts) > _DEEPEST:
        raise OSError(errno.ENAMETOOLONG, f"is more than {_DEEPEST} folders deep", str(path))
    for name in names(path):
        if name in without:
            continue
        with folder(path) as above:
            found = status_in(above, name)
        if stat.S_ISDIR(found.st_mode):
            yield from state_of(path / name, without=without)
        else:
            refuse(found, path / name)
            yield str(path / name), found.st_mtime_ns, found.st_size
