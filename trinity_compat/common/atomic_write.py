"""Atomic writing of files; devices, pipes and open files are written to, never replaced.

A regular file, existing or new, is written beside its place and then renamed onto it: no reader sees half
of it, and a failure leaves what was there. Anything else would be destroyed that way: renamed onto
``/dev/null``, a file takes the device's place for the whole machine. So links are followed first, and what
is not a regular file is opened and written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_OPEN_FILES = re.compile(r"/dev/fd|/proc/(?:self|thread-self|\d+)(?:/task/\d+)?/fd")
_MOST_LINKS = 40  # as the kernel follows
_SHOWN_NAME = 40  # characters of the file's name in that of the one beside it; a name holds 255 bytes
_PRIVATE = 0o600
_UP_TO_UMASK = 0o666


def write_text(path: Path, text: str, *, mode: int | None = None) -> None:
    """Write ``text`` to ``path`` as UTF-8; ``mode`` and errors as for ``replacing``."""
    with replacing(path, mode=mode) as file:
        file.write(text.encode())


@contextlib.contextmanager
def replacing(path: Path, *, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Open a file for the new content of ``path``; a regular file is replaced at the end of the block.

    ``mode``: the file's permissions, less the umask; None keeps those of an existing file. ``/dev/stdout``
    and ``/dev/fd/N`` continue at that file's position, like the shell's ``>&N``. Raises OSError.
    """
    target = _followed(path)
    old = _status(target)
    if _is_open_file(target) or (old is not None and not stat.S_ISREG(old.st_mode)):
        with os.fdopen(_opened(target), "wb") as file:
            yield file
    else:
        with _beside(target, old, mode) as file:
            yield file


def _followed(path: Path) -> Path:
    """Resolve the links of ``path``, except links to a process's open files.

    Such a link reads as a name that may no longer exist, or never was one (``pipe:[42]``).
    """
    path = path.absolute()
    for _ in range(_MOST_LINKS):
        path = Path(os.path.realpath(path.parent)) / path.name
        if _is_open_file(path) or not path.is_symlink():
            return path
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _is_open_file(path: Path) -> bool:
    return path.name.isdecimal() and _OPEN_FILES.fullmatch(str(path.parent)) is not None


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _opened(target: Path) -> int:
    """Return a handle for writing to a file that is not regular; nothing is created or truncated."""
    own = ("/dev/fd", "/proc/self/fd", f"/proc/{os.getpid()}/fd")
    if not _is_open_file(target) or str(target.parent) not in own:
        return os.open(target, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):  # what is still in their buffers comes first
        stream.flush()
    return os.dup(int(target.name))


@contextlib.contextmanager
def _beside(target: Path, old: os.stat_result | None, mode: int | None) -> Iterator[IO[bytes]]:
    """Yield a new file in ``target``'s folder, renamed to it at the end of the block, removed on failure."""
    if old is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
    kept = old if mode is None else None
    part = target.with_name(f".{target.name[:_SHOWN_NAME]}.{secrets.token_hex(4)}.part")
    first = _PRIVATE if kept else _UP_TO_UMASK if mode is None else mode
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, first)
    try:
        with os.fdopen(handle, "wb") as file:
            if kept:
                # The owner, where that is allowed, and the permissions are those of the file it replaces.
                new = os.fstat(handle)
                if (new.st_uid, new.st_gid) != (kept.st_uid, kept.st_gid):
                    with contextlib.suppress(PermissionError):
                        os.fchown(handle, kept.st_uid, kept.st_gid)
                os.fchmod(handle, stat.S_IMODE(kept.st_mode) & 0o777)
            yield file
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
