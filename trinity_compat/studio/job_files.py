"""Files of a job, opened without following a link and without waiting for a pipe.

A job may be somebody else's. Each folder from the root of the file system down to the file is opened from
the one above it with O_NOFOLLOW, so that a link, or a folder that one replaces meanwhile, leads nowhere.
Paths are absolute, and free of links above the job (``Jobs`` resolves them). Only regular files are read.

All functions raise OSError; its ``strerror`` says what is wrong.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_MOST = 64 << 20  # bytes of one text
_DEEPEST = 64  # parts of a path
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY)
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@contextmanager
def folder(path: Path, *, listed: bool = False) -> Iterator[int]:
    """A handle of a folder to open files from; with ``listed``, one for os.listdir."""
    names = path.parts[1:]
    handle = os.open(path.anchor, _SEARCH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for at, name in enumerate(names):
            how = os.O_RDONLY if listed and at == len(names) - 1 else _SEARCH
            try:
                below = os.open(name, how | _FOLDER, dir_fd=handle)
            except NotADirectoryError:
                _refuse(_status(handle, name), Path(*path.parts[: at + 2]))
                raise
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def opened(path: Path) -> BinaryIO:
    """A regular file, for reading."""
    with folder(path.parent) as above:
        _refuse(_status(above, path.name), path)
        handle = os.open(path.name, os.O_RDONLY | _FILE, dir_fd=above)
    try:
        _refuse(os.fstat(handle), path)  # it may have been replaced since
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def appended(path: Path) -> BinaryIO:
    """A regular file to write at its end; a new one is for this user alone."""
    with folder(path.parent) as above:
        handle = os.open(path.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _FILE, 0o600, dir_fd=above)
    try:
        _refuse(os.fstat(handle), path)
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
        found = _status(above, path.name)
    _refuse(found, path)
    return found


def statuses(root: Path, files: Sequence[tuple[str, str]]) -> list[os.stat_result | None]:
    """Return the status of each (folder, name) below ``root``: a regular file's, or a folder's for name ''.

    None for one that is not there, or not to be looked for.
    """
    found: dict[tuple[str, str], os.stat_result] = {}
    with contextlib.suppress(OSError), folder(root) as above:
        for name in dict.fromkeys(name for name, _ in files):
            with contextlib.suppress(OSError):
                handle = os.open(name, _SEARCH | _FOLDER, dir_fd=above)
                try:
                    for key in (key for key in files if key[0] == name):
                        with contextlib.suppress(OSError):
                            found[key] = _status(handle, key[1]) if key[1] else os.fstat(handle)
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
            found = _status(above, name)
        if stat.S_ISDIR(found.st_mode):
            yield from state_of(path / name, without=without)
        else:
            _refuse(found, path / name)
            yield str(path / name), found.st_mtime_ns, found.st_size


def _status(above: int, name: str) -> os.stat_result:
    return os.stat(name, dir_fd=above, follow_symlinks=False)


def _refuse(found: os.stat_result, path: Path) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, "is a link, and the studio follows none out of a job", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
