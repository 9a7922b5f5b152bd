"""Detection of a full disk, and the one message that names the folder."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trinity_compat.common import database_url
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.job.run_spec import RunSpec

_CODES = (errno.ENOSPC, errno.EDQUOT)
_WORDS = ("No space left on device", "Disk quota exceeded")  # Ray's and Rust's: the number is lost on the way
_TORCH = "inline_container.cc"  # torch.save's file writer: it names itself, and not the reason
TOLD = "no space left"  # the buffer's own message has it too
HINT = "free some space and run the same command again: it goes on from its newest checkpoint"
_FULL = 1 << 20  # bytes: with fewer a disk counts as full


class DiskFull(RunError):
    """A disk is full. What was written stays; half-written versions and checkpoints do not count."""


def explained(error: BaseException, spec: RunSpec) -> DiskFull | None:
    """Return ``error`` as a message that names the full folder, or None for another error.

    Libraries report a full disk in their own words, or only by a failed write; then the run's folders are
    checked. An error that has a message of ours already is not replaced.
    """
    chain = [*_chain(error)]
    if any(isinstance(each, RunError | UserError) for each in chain):
        return None
    folder = full_folder(spec)
    if any(_says_so(each) for each in chain) or (folder and any(_TORCH in str(each) for each in chain)):
        named = (each.filename for each in chain if isinstance(each, OSError))
        place = folder or next((Path(str(name)).parent for name in named if name), Path(spec.job_dir))
        lines = str(error).strip().splitlines()  # the last one tells: Ray's errors begin with a traceback
        last = f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]
        return DiskFull(f"{told(place)}: {last}", hint=HINT)
    return None


def told(folder: Path) -> str:
    """Return the message for a full folder."""
    return f"{TOLD} in {folder} ({_free(folder) / 2**20:.0f} MiB free)"


def full_folder(spec: RunSpec) -> Path | None:
    """Return the first of the folders whose disk is full: job, weights, database, temporary files."""
    file = database_url.file_of(spec.database_url)
    database = str(file.parent) if file else ""
    places = (spec.job_dir, spec.sync.directory, database, tempfile.gettempdir())
    folders = (Path(place) for place in places if place and Path(place).is_dir())
    return next((folder for folder in folders if _free(folder) < _FULL), None)


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _says_so(error: BaseException) -> bool:
    return getattr(error, "errno", None) in _CODES or any(words in str(error) for words in _WORDS)
