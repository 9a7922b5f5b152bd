"""Regular files, opened without waiting for a pipe, and most without following a link.

Each folder from the root of the file system down to the file is opened from the one above it with
O_NOFOLLOW, so that a link, or a folder that one replaces meanwhile, leads nowhere. Paths are absolute. Where
the system opens no file from a folder's handle (Windows, a web page), the path is opened as it is. A run
reads its own job with ``followed``, since the user may have put links there.

All functions raise OSError; its ``strerror`` says what is wrong.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

SEARCH = getattr(os, "O_PATH", os.O_RDONLY)
OF_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
OF_FILE = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_MOST = 64 << 20  # bytes of a text
_FROM_HANDLES = {os.open, os.stat} <= os.supports_dir_fd and sys.platform != "emscripten"


@contextmanager
def folder(path: Path, *, listed: bool = False) -> Iterator[int]:
    """A handle of a folder to open files from; with ``listed``, one for os.listdir."""
    names = path.parts[1:]
    handle = os.open(path.anchor, (SEARCH if names or not listed else os.O_RDONLY) | OF_FOLDER)
    try:
        for at, name in enumerate(names):
            how = os.O_RDONLY if listed and at == len(names) - 1 else SEARCH
            try:
                below = os.open(name, how | OF_FOLDER, dir_fd=handle)
            except NotADirectoryError:
                refuse(status_in(handle, name), Path(*path.parts[: at + 2]))
                raise
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def opened(path: Path) -> BinaryIO:
    """A regular file, for reading."""
    if _FROM_HANDLES:
        with folder(path.parent) as above:
            refuse(status_in(above, path.name), path)
            handle = os.open(path.name, os.O_RDONLY | OF_FILE, dir_fd=above)
    else:
        refuse(path.lstat(), path)
        handle = os.open(path, os.O_RDONLY | OF_FILE)
    try:
        refuse(os.fstat(handle), path)  # it may have been replaced since
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def followed(path: Path) -> BinaryIO:
    """A regular file for reading, also behind links."""
    return _with_links(path, os.O_RDONLY, "rb")


def appended(path: Path) -> BinaryIO:
    """A regular file to write at its end, also behind links; it need not exist."""
    return _with_links(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, "ab")


def followed_text(path: Path) -> str:
    """Return the text of a regular file, also behind links. Raises ValueError where it is not UTF-8."""
    with followed(path) as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise OSError(errno.EFBIG, f"is larger than {_MOST >> 20} MiB", str(path))
    return data.decode()


def _with_links(path: Path, how: int, mode: Literal["rb", "ab"]) -> BinaryIO:
    handle = os.open(path, how | OF_FILE & ~getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        refuse(os.fstat(handle), path)
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, mode)


def names(path: Path, most: int) -> list[str]:
    """Return the names in a folder, at most so many."""
    if not _FROM_HANDLES:
        with os.scandir(path) as entries:
            return [entry.name for _, entry in zip(range(most), entries, strict=False)]
    with folder(path, listed=True) as handle, os.scandir(handle) as entries:
        return [entry.name for _, entry in zip(range(most), entries, strict=False)]


def status_in(above: int, name: str) -> os.stat_result:
    """Return the status of what a folder has under a name; no link is followed."""
    return os.stat(name, dir_fd=above, follow_symlinks=False)


def refuse(found: os.stat_result, path: Path) -> None:
    """Raise OSError for anything but a regular file."""
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, "is a link, and none is followed here", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
