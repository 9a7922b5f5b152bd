"""Reads of files that others may have put in place: regular ones only, so that no read waits for a pipe."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_MOST = 64 << 20  # bytes of a text


def opened(path: Path) -> BinaryIO:
    """Open a regular file, also behind a link. Raises OSError for anything else."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def text(path: Path) -> str:
    """Return the text of a regular file. Raises OSError as ``opened``, and ValueError for bytes not UTF-8."""
    with opened(path) as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise OSError(errno.EFBIG, f"is larger than {_MOST >> 20} MiB", str(path))
    return data.decode()
