"""Reads of files that others may have put in place: regular ones only, so that no read waits for a pipe."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_MOST = 64 << 20  # bytes of a text
_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)


def opened(path: Path) -> BinaryIO:
    """Open a regular file, also behind a link. Raises OSError for anything else."""
    return os.fdopen(_regular(os.open(path, os.O_RDONLY | _WITHOUT_WAITING), path), "rb")


def appended(path: Path) -> BinaryIO:
    """Open a regular file, which need not exist, to write at its end. Raises OSError for anything else."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _WITHOUT_WAITING, 0o666)
    return os.fdopen(_regular(handle, path), "ab")


def text(path: Path) -> str:
    """Return the text of a regular file. Raises OSError as ``opened``, and ValueError for bytes not UTF-8."""
    with opened(path) as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise OSError(errno.EFBIG, f"is larger than {_MOST >> 20} MiB", str(path))
    return data.decode()


def _regular(handle: int, path: Path) -> int:
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "is not a regular file", str(path))
