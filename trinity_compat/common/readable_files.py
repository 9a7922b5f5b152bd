"""Files that a launch's text makes its reader open: only those in folders that the user named.

What a launch's files hold is printed, and the text of a launch, which others may have written, says which
files they are. So all of them are opened here. A file's real path, links followed, must lie below one of the
``roots``: ``--cwd``, a folder of ``--also-read``, the folder of a file that the command line names. Not read
are anything but regular files, what the kernel shows as files (/proc has each process's environment), and
what is in a ``.git``, where a checkout keeps its token.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import BinaryIO

from trinity_compat.common import regular_files
from trinity_compat.common.errors import UserError, Where

Roots = Sequence[str | os.PathLike[str]]

_KERNELS = ("/proc", "/sys", "/dev")
_SHARED_MEMORY = "/dev/shm"  # has ordinary files
_ALSO: ContextVar[tuple[str, ...]] = ContextVar("folders of --also-read", default=())


class OutOfReach(OSError):
    """A path that leads to a file that is not read. ``hint``: what the user may do, or None."""

    def __init__(self, why: str, path: str, hint: str | None = None) -> None:
        super().__init__(errno.EACCES, why, path)
        self.hint = hint


@contextmanager
def also_reading(folders: Sequence[str]) -> Iterator[Sequence[str]]:
    """Take these folders, which it yields, too, for roots of every reading in the block."""
    before = _ALSO.set((*_ALSO.get(), *map(os.path.abspath, folders)))
    try:
        yield folders
    finally:
        _ALSO.reset(before)


def real_path(path: str | os.PathLike[str], roots: Roots | None) -> str:
    """Return where a path leads, links followed. ``roots``: None for a file of which no text is shown.

    Raises OutOfReach.
    """
    try:
        real = os.path.realpath(path)
    except (OSError, ValueError) as error:
        raise OutOfReach("cannot be a path", os.fspath(path)) from error
    if any(is_below(real, folder) for folder in _KERNELS) and not is_below(real, _SHARED_MEMORY):
        raise OutOfReach("is the system's, not a file", os.fspath(path))
    if roots is not None and not any(is_below(real, root) for root in _real(roots)):
        why = f"leads to {real}, which is not below {' or '.join(_real(roots))}"
        raise OutOfReach(why, os.fspath(path), f"name {real} itself, or its folder with --also-read")
    return real


def _real(roots: Roots) -> list[str]:
    return list(dict.fromkeys(map(os.path.realpath, (*roots, *_ALSO.get()))))


def is_below(path: str, folder: str) -> bool:
    """Return whether an absolute path is a folder's or below it; no link is followed."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def opened(path: str | os.PathLike[str], roots: Roots | None) -> BinaryIO:
    """A regular file in reach, for reading. Raises OSError; its ``strerror`` says what is wrong."""
    real = real_path(path, roots)
    if roots is not None and all(_in_git(real, root) for root in _real(roots) if is_below(real, root)):
        raise OutOfReach("belongs to git and is not read", os.fspath(path))
    file = regular_files.opened(Path(real))
    if os.fstat(file.fileno()).st_dev in _kernel_devices():
        file.close()
        raise OutOfReach("is the system's, not a file", os.fspath(path))
    return file


def content(path: str | os.PathLike[str], roots: Roots | None, most: int) -> bytes:
    """Return what a regular file in reach holds. Raises OSError, also for more than ``most`` bytes."""
    with opened(path, roots) as file:
        # what the kernel shows under another path than its own has no size
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"is larger than {_amount(most)}", os.fspath(path))
        return file.read(size)


def named_content(
    path: str | os.PathLike[str], most: int, cwd: str | os.PathLike[str] | None = None
) -> bytes:
    """Return what a file of the command line holds. Raises UserError; ``cwd``: as for `roots_of_named`."""
    return _of_named(path, most, cwd, whole=True)


def _of_named(
    path: str | os.PathLike[str], most: int, cwd: str | os.PathLike[str] | None, *, whole: bool
) -> bytes:
    roots = roots_of_named(path, cwd)
    try:
        if whole:
            return content(path, roots, most)
        with opened(path, roots) as file:
            return file.read(most)
    except OSError as error:
        hint = error.hint if isinstance(error, OutOfReach) else None
        raise UserError(
            f"cannot be read: {error.strerror}", where=Where(os.fspath(path)), hint=hint
        ) from None


def named_start(path: str | os.PathLike[str], most: int, cwd: str | os.PathLike[str] | None = None) -> bytes:
    """Return the first ``most`` bytes of a file of the command line, as `named_content` does."""
    return _of_named(path, most, cwd, whole=False)


def roots_of_named(path: str | os.PathLike[str], cwd: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the roots for a file that the command line names.

    Below the working directory, which may be somebody's checkout, a link must not lead out of it; elsewhere
    the file must lie in the folder that is named, or below ``cwd``, the folder of ``--cwd``.
    """
    spelled, here = os.path.abspath(path), os.getcwd()  # noqa: PTH100, PTH109 - Path keeps the dots
    own = here if is_below(spelled, here) else str(Path(spelled).parent)
    return [own] if cwd is None else [own, os.fspath(cwd)]


def names(path: str | os.PathLike[str], roots: Roots, most: int) -> list[str]:
    """Return the names in a folder in reach, at most so many. Raises OSError."""
    return regular_files.names(Path(real_path(path, roots)), most)


def _amount(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size} bytes"


def _in_git(real: str, root: str) -> bool:
    return ".git" in Path(os.path.relpath(real, root).lower()).parts


@cache
def _kernel_devices() -> frozenset[int]:
    """The devices of /proc and /sys: a folder of theirs may be mounted elsewhere, too."""
    there = [os.stat(folder).st_dev for folder in _KERNELS[:2] if os.path.isdir(folder)]  # noqa: PTH112, PTH116
    return frozenset(there) - {os.stat("/").st_dev}  # noqa: PTH116
