"""Tags and notes that the user gives to runs.

They lie in one file of the user's own, by the folder of the run: a run may be another user's, and its folder
closed to writing. A folder that is renamed loses them.
"""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trinity_compat.common.atomic_write import write_text
from trinity_compat.common.errors import UserError
from trinity_compat.studio import job_files
from trinity_compat.studio.private_files import data_folder, keep_private


@dataclass(frozen=True, slots=True)
class RunNote:
    """The tags and the note of one run."""

    tags: tuple[str, ...] = ()
    text: str = ""


NONE = RunNote()


class RunNotes:
    """The file, ``run-notes.json``; read again when it has changed."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or data_folder() / "run-notes.json"
        self._read: tuple[tuple[int, int, int], Mapping[str, RunNote]] | None = None
        self._lock = threading.Lock()

    def of(self, place: Path) -> RunNote:
        """Return what the run at ``place`` has. Raises UserError for a file that cannot be read."""
        return self.all().get(str(place), NONE)

    def all(self) -> Mapping[str, RunNote]:
        """Return folder of a run → its tags and note. Raises UserError for a file that cannot be read."""
        try:
            found = job_files.status(self._path)
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if self._read is None or self._read[0] != stamp:
                self._read = (stamp, _parsed(job_files.text(self._path)))
            return self._read[1]
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise UserError(f"{self._path} {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{self._path} has no tags and notes of runs: {error}", hint="correct it, or move it away"
            ) from error

    def keep(self, place: Path, note: RunNote) -> None:
        """Keep tags and a note; nothing of both forgets the run. Raises UserError."""
        with self._locked():
            notes = {**self.all(), str(place): note}
            plain = {at: {"tags": it.tags, "note": it.text} for at, it in sorted(notes.items()) if it != NONE}
            try:
                write_text(self._path, json.dumps(plain, indent=1) + "\n", mode=0o600)
            except OSError as error:
                raise UserError(f"{self._path} cannot be written: {error.strerror}") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other studios of the user from writing meanwhile."""
        lock = self._path.with_suffix(".lock")
        try:
            keep_private(lock)
            with self._lock, lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise UserError(f"{lock} {error.strerror}") from error


def _parsed(text: str) -> Mapping[str, RunNote]:
    found = {}
    for place, it in json.loads(text).items():
        if not all(isinstance(word, str) for word in (*it["tags"], it["note"])):
            raise ValueError(f"the tags or the note of {place} are no text")
        found[place] = RunNote(tuple(it["tags"]), it["note"])
    return found
