"""The latest comparisons that the pages show, each computed once per state of its runs."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from trinity_compat.common.errors import UserError
from trinity_compat.compare.axes import Axis
from trinity_compat.compare.margins import CompareOptions
from trinity_compat.compare.model import Side
from trinity_compat.compare.verdict import Comparison, compare
from trinity_compat.studio import job_files, run_reader
from trinity_compat.studio.baselines import Baseline, Baselines, File
from trinity_compat.studio.jobs import Job

_KEPT = 4
Selection = Job | Baseline


@dataclass(frozen=True, slots=True)
class ComparisonQuery:
    """Two sides, each the seeds of one configuration."""

    a: tuple[Selection, ...]
    b: tuple[Selection, ...]
    axis: Axis

    @property
    def sides(self) -> str:
        """The query that names them."""
        return urlencode([("a", one.name) for one in self.a] + [("b", one.name) for one in self.b])

    @property
    def address(self) -> str:
        """The query that asks for it again."""
        return f"{self.sides}&axis={self.axis}"

    def state(self) -> str:
        """Return a digest of the query and of the times and sizes of the files that it reads.

        Raises UserError where a side holds anything but regular files: the readers of `trinity-compat
        compare` open files by their names.
        """
        digest = hashlib.sha256(self.address.encode())
        for one in (*self.a, *self.b):
            for file in one.files() if isinstance(one, Baseline) else _files_of(one):
                digest.update(repr(file).encode(errors="replace"))
        return digest.hexdigest()[:16]


def _files_of(job: Job) -> Iterator[File]:
    for name in ("config", "monitor"):
        try:
            yield from job_files.state_of(job.dir.root / name)
        except OSError as error:
            raise UserError(f"{error.filename or job.dir.root / name} {error.strerror}") from error


class Comparisons:
    """The latest ones; made again when a run has moved on."""

    def __init__(self, baselines: Baselines) -> None:
        self.baselines = baselines
        self._kept: OrderedDict[str, Comparison] = OrderedDict()
        self._lock = threading.Lock()
        self.took_s = 0.0  # the last computation

    def of(self, query: ComparisonQuery) -> Comparison:
        """Raises UserError where the sides cannot be compared. One at a time: it takes a core for a while."""
        with self._lock:
            key = query.state()
            if key not in self._kept:
                began = time.monotonic()
                self._kept[key] = compare(
                    self._side(query.a), self._side(query.b), CompareOptions(axis=query.axis)
                )
                self.took_s = time.monotonic() - began
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return self._kept[key]

    def _side(self, chosen: Sequence[Selection]) -> Side:
        label = chosen[0].name if len(chosen) == 1 else f"{chosen[0].name} and {len(chosen) - 1} more"
        runs = (
            self.baselines.runs(one) if isinstance(one, Baseline) else run_reader.read(one.dir.root)
            for one in chosen
        )
        return Side(label, [run for of_one in runs for run in of_one])
