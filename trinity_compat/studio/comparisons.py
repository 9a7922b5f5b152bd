"""The latest comparisons that the pages show, each computed once per state of its runs."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from trinity_compat.buffer.errors import BufferError
from trinity_compat.common.errors import UserError
from trinity_compat.compare.axes import Axis
from trinity_compat.compare.margins import CompareOptions
from trinity_compat.compare.model import RunMetrics, Series, Side
from trinity_compat.compare.verdict import Comparison, compare
from trinity_compat.studio import job_files, run_reader
from trinity_compat.studio.baselines import Baseline, Baselines, File
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.series import Metrics

_KEPT = 4
_DATABASE = "read from its database: it has no event files"
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
        return f"{self.sides}&x={self.axis}"

    def state(self) -> str:
        """Return a digest of the query and of the times and sizes of the files that it reads.

        Raises UserError where a side holds anything but regular files: the readers of `trinity-compat
        compare` open files by their names.
        """
        digest = hashlib.sha256(self.address.encode())
        for one in (*self.a, *self.b):
            files = one.files() if isinstance(one, Baseline) else list(_files_of(one))
            digest.update(repr(files).encode(errors="replace"))
            if isinstance(one, Job) and not _has_events(files):
                digest.update(repr(one.signature()).encode())
        return digest.hexdigest()[:16]


def _files_of(job: Job) -> Iterator[File]:
    for name in ("config", "monitor"):
        try:
            yield from job_files.state_of(job.dir.root / name)
        except OSError as error:
            raise UserError(f"{error.filename or job.dir.root / name} {error.strerror}") from error


def _has_events(files: Sequence[File]) -> bool:
    return any("events.out.tfevents" in path for path, _, _ in files)


def _runs_of(job: Job) -> list[RunMetrics]:
    """Return the job as `trinity-compat compare` reads it; without event files, as its database has it."""
    metrics = Metrics()
    if not _has_events(list(_files_of(job))):
        metrics.update(job)
    series = {name: Series() for name in metrics.names()}
    for name, points in metrics.series(series).items():
        for step, value in zip(*points, strict=True):
            series[name].add(step, value)
    if not series:
        return run_reader.read(job.dir.root)
    root, spec = job.dir.root, job.spec
    meta = {"verl": spec.verl, "updates_per_step": spec.updates_per_step}
    return [RunMetrics(root.name, str(root), "job", series, spec.updates_per_step, meta, [_DATABASE])]


class Comparisons:
    """The latest ones; made again when a run has moved on."""

    def __init__(self, baselines: Baselines) -> None:
        self.baselines = baselines
        self._kept: OrderedDict[str, Comparison | UserError] = OrderedDict()
        self._lock = threading.Lock()
        self.took_s = 0.0  # the last computation

    def of(self, query: ComparisonQuery) -> Comparison:
        """Raises UserError where the sides cannot be compared. One at a time: it takes a core for a while."""
        with self._lock:
            key = query.state()
            if key not in self._kept:
                began = time.monotonic()
                try:
                    options = CompareOptions(axis=query.axis)
                    self._kept[key] = compare(self._side(query.a), self._side(query.b), options)
                except UserError as error:
                    self._kept[key] = error
                except BufferError as error:
                    self._kept[key] = UserError(str(error))
                self.took_s = time.monotonic() - began
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            found = self._kept[key]
        if isinstance(found, UserError):
            raise found
        return found

    def _side(self, chosen: Sequence[Selection]) -> Side:
        label = chosen[0].name if len(chosen) == 1 else f"{chosen[0].name} and {len(chosen) - 1} more"
        runs = (self.baselines.runs(one) if isinstance(one, Baseline) else _runs_of(one) for one in chosen)
        return Side(label, [run for of_one in runs for run in of_one])
