"""Baselines: runs that are not jobs, in the formats of `trinity-compat compare`, as sides of a comparison.

A baseline is given at the start (``--baseline NAME=PATH``) or found by the scan: no path comes from a
request. Its files may be hostile: number, kinds and sizes are checked before a reader opens one.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trinity_compat.common.errors import UserError, Where
from trinity_compat.compare.model import RunMetrics
from trinity_compat.studio import job_files, run_reader
from trinity_compat.studio.folder_scan import FolderScan
from trinity_compat.studio.jobs import is_job, shown_name

FORMATS = "a TensorBoard folder, a W&B offline run, an mlflow run's folder, CSV, JSON(L) or a veRL log"
PREFIX = "baseline:"  # of its name in addresses
_FILES = (".csv", ".jsonl", ".log")  # found by their names
_TABLES = (".csv", ".json", ".jsonl")  # held in memory as text
_DATABASES = (".db", ".sqlite")
_WANDB_LINKS = frozenset(("latest-run", "debug.log", "debug-internal.log", "debug-cli.root.log"))
_MOST_BYTES, _MOST_TABLE_BYTES = 256 << 20, 64 << 20
_MOST_ENTRIES = 20_000  # files of one baseline
_MOST_RUNS, _MOST_METRICS, _MOST_POINTS = 64, 2_000, 100_000
_MOST_FOUND = 500
_DEEPEST = 6  # folders below the studio's
_KEPT, _KEPT_POINTS = 8, 16_000_000  # baselines whose runs stay in memory, and their points of 24 bytes
File = tuple[str, int, int]  # path, time of change, size


class Baseline:
    """A file or folder of one run, or of several (seeds). ``path`` is absolute and free of links."""

    def __init__(self, name: str, path: Path) -> None:
        self.label = name
        self.name = f"{PREFIX}{name}"
        self.path = path
        self.shown_path = shown_name(str(path))

    def files(self) -> list[File]:
        """Return the files that a reader may open. Raises UserError where they are not for the studio."""
        try:
            found = [file for file in self._below() if _is_read(Path(file[0]), self.path)]
        except OSError as error:
            said = error.strerror or str(error)
            raise UserError(said, where=Where(str(error.filename or self.path))) from error
        for path, _, size in found:
            if Path(path).suffix.lower() in _DATABASES:
                raise UserError(
                    f"is a database, which the studio does not open for a baseline; it takes {FORMATS}",
                    where=Where(path),
                    hint="trinity-compat compare reads mlflow.db",
                )
            if Path(path).suffix.lower() in _TABLES and size > _MOST_TABLE_BYTES:
                raise _too_large(Path(path), _MOST_TABLE_BYTES)
        if sum(size for _, _, size in found) > _MOST_BYTES:
            raise _too_large(self.path, _MOST_BYTES)
        return found

    def state(self) -> str:
        """Return a text that changes when its files do. Raises UserError as ``files``."""
        return hashlib.sha256(repr(self.files()).encode(errors="replace")).hexdigest()[:16]

    def _below(self) -> Iterator[File]:
        if not self.path.is_dir():
            found = job_files.status(self.path)
            yield str(self.path), found.st_mtime_ns, found.st_size
            return
        for count, file in enumerate(job_files.state_of(self.path, without=_WANDB_LINKS)):
            if count >= _MOST_ENTRIES:
                raise UserError(f"more than {_MOST_ENTRIES} files", where=Where(str(self.path)))
            yield file

    def read(self) -> list[RunMetrics]:
        """Read its runs. Raises UserError where its content is not in one of FORMATS, or too much."""
        runs = run_reader.read(self.path)
        for what, count, most in _sizes(runs):
            if count > most:
                raise UserError(
                    f"has {count:,} {what}; the studio compares at most {most:,}", where=Where(str(self.path))
                )
        return runs


def _is_read(path: Path, baseline: Path) -> bool:
    """Return whether a reader may open the file: by its name, or as a metric of mlflow's."""
    known = (*_FILES[:2], ".wandb", *_DATABASES)
    event = path.name.startswith("events.out.tfevents")
    mlflow = "metrics" in path.parts or "tags" in path.parts
    return path == baseline or path.suffix.lower() in known or event or mlflow


def _too_large(path: Path, most: int) -> UserError:
    return UserError(
        f"is larger than {most >> 20} MiB, which the studio does not read",
        where=Where(str(path)),
        hint="trinity-compat compare reads it",
    )


def _sizes(runs: Sequence[RunMetrics]) -> Iterator[tuple[str, int, int]]:
    yield "runs", len(runs), _MOST_RUNS
    for run in runs:
        yield "metrics", len(run.series), _MOST_METRICS
        yield "points of a metric", max(map(len, run.series.values()), default=0), _MOST_POINTS


class Baselines:
    """The given baselines, and those found below ``root`` outside jobs."""

    def __init__(self, root: Path, given: Mapping[str, Path]) -> None:
        self._root = root.absolute()
        self._given = {one.name: one for one in (Baseline(name, path) for name, path in given.items())}
        self.scan = FolderScan(self._scanned)
        self._runs: OrderedDict[str, tuple[list[File], list[RunMetrics]]] = OrderedDict()
        self._lock = threading.Lock()
        self.are_more = False  # than are listed

    def all(self) -> Mapping[str, Baseline]:
        """Return name → baseline, given ones first; scanned again every few seconds."""
        return {**self._given, **self.scan.all()}

    def get(self, name: str) -> Baseline | None:
        """Return the baseline of that name, PREFIX included; None where there is none."""
        return self._given.get(name) or self.scan.get(name)

    def _scanned(self, _: Mapping[str, Baseline]) -> Mapping[str, Baseline]:
        found = dict[str, Baseline]()
        self.are_more = False
        for one in _scan(self._root.resolve()):
            if len(found) == _MOST_FOUND:
                self.are_more = True
                break
            found[one.name] = one
        return {name: found[name] for name in sorted(found) if name not in self._given}

    def runs(self, one: Baseline) -> list[RunMetrics]:
        """Return its runs, read again when its files have changed. Raises UserError."""
        files = one.files()
        with self._lock:
            kept = self._runs.get(one.name)
        runs = kept[1] if kept and kept[0] == files else one.read()
        with self._lock:
            self._runs[one.name] = (files, runs)
            self._runs.move_to_end(one.name)
            while len(self._runs) > 1 and (len(self._runs) > _KEPT or self._points() > _KEPT_POINTS):
                self._runs.popitem(last=False)
        return runs

    def _points(self) -> int:
        kept = (series for _, runs in self._runs.values() for run in runs for series in run.series.values())
        return sum(map(len, kept))


def _scan(root: Path) -> Iterator[Baseline]:
    for folder, children, files in os.walk(root):
        here = Path(folder)
        if is_job(here):
            children.clear()
            continue
        children[:] = sorted(name for name in children if not name.startswith(".") and name != "node_modules")
        if len(here.relative_to(root).parts) >= _DEEPEST:
            children.clear()
        if here != root and _is_run(children, files):
            children.clear()
            yield Baseline(shown_name(here.relative_to(root).as_posix()), here)
            continue
        for name in sorted(files):
            path = here / name
            if path.suffix.lower() in _FILES and not name.startswith(".") and not path.is_symlink():
                yield Baseline(shown_name(path.relative_to(root).as_posix()), path)


def _is_run(children: Sequence[str], files: Sequence[str]) -> bool:
    """Return whether a folder is one run: TensorBoard's, W&B's, mlflow's, or Trinity-RFT's job."""
    of_run = any(name.startswith("events.out.tfevents") or name.endswith(".wandb") for name in files)
    return of_run or "monitor" in children or ("metrics" in children and "meta.yaml" in files)
