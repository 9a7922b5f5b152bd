"""Scans of the studio's folder: again every few seconds, and at once for a name that is not known."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")
_SCAN_EVERY_S = 3.0


class FolderScan(Generic[T]):
    """The last scan's finds. ``scan`` makes them, from those of the scan before."""

    def __init__(self, scan: Callable[[Mapping[str, T]], Mapping[str, T]]) -> None:
        self._scan = scan
        self._found: Mapping[str, T] = {}
        self._began = self._ended = float("-inf")  # of the last scan
        self._lock = threading.Lock()

    def all(self) -> Mapping[str, T]:
        """Return name → find, from a scan of the last seconds."""
        with self._lock:
            if time.monotonic() - self._ended > _SCAN_EVERY_S:
                self._look()
            return self._found

    def get(self, name: str) -> T | None:
        """Return the find of that name, None where there is none.

        A name that the last scan did not find may be new: it is looked for once more. Requests that ask at
        the same time share one scan.
        """
        asked = time.monotonic()
        if (found := self.all().get(name)) is not None:
            return found
        with self._lock:
            if self._began < asked:
                self._look()
            return self._found.get(name)

    def make_due(self) -> None:
        """Have the next request scan, however short ago the last scan was."""
        self._ended = float("-inf")

    def _look(self) -> None:
        self._began = time.monotonic()
        self._found = self._scan(self._found)
        self._ended = time.monotonic()
