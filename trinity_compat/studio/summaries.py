"""Summaries and configurations of runs: from memory, from the index of what was read, or read from the job.

Reading a run takes some 10 ms. A request that needs all runs of a large folder reads for a part of a second;
a thread reads the others, and the next request has them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.common.redaction import hidden, shown
from trinity_compat.run.job_dir.alerts import Alert
from trinity_compat.studio import run_state
from trinity_compat.studio.jobs import Job, Signature
from trinity_compat.studio.run_index import IndexedRun, RunIndex
from trinity_compat.studio.run_state import GOES_ON, RunSummary

_SETTLED_S = 2.0  # files that changed later than that may change again within one tick of their clock
_COSTLY_S, _SHARE = 0.5, 20  # a run that takes more CPU time to read has a twentieth of a core at most
_AT_ONCE = 50  # entries that are written together
_NUMBERS = ("reward", "lag", "tokens_per_s", "step_s")


@dataclass
class _Kept:
    signature: Signature | None
    summary: RunSummary
    until: float = 0.0  # on the monotonic clock: it is not read again before
    values: dict[str, object] = field(default_factory=dict)  # of the configuration, those asked for


class Summaries:
    """A run that does not go on is read again only if its files have changed."""

    def __init__(self, index: RunIndex | None = None) -> None:
        self._index = index
        self._kept: dict[Path, _Kept] = {}
        self._lock = threading.Lock()
        self._new: list[IndexedRun] = []
        self._queue: dict[Path, Job] = {}
        self._is_reading = False

    def of(self, job: Job) -> RunSummary:
        """Return the job's row. Never raises: an unreadable job has its problem in the row."""
        return self._fresh(job) or self._read(job)

    def of_all(self, jobs: Iterable[Job], within_s: float) -> tuple[dict[str, RunSummary], int]:
        """Return name → summary, and how many are missing since there was no time: a thread reads these.

        A run that was read before has its last summary then.
        """
        found: dict[str, RunSummary] = {}
        others: list[Job] = []
        for job in jobs:
            if summary := self._fresh(job):
                found[job.name] = summary
            else:
                others.append(job)
        others.sort(key=lambda job: job.dir.root in self._kept)
        until = time.monotonic() + within_s
        later = []
        for job in others:
            if time.monotonic() < until:
                found[job.name] = self._read(job)
            elif kept := self._kept.get(job.dir.root):
                found[job.name] = kept.summary
                later.append(job)
            else:
                later.append(job)
        self.save()
        self._read_beside(later)
        return found, sum(job.name not in found for job in later)

    def configuration(self, job: Job) -> Mapping[str, object]:
        """Return dotted key → value with secrets hidden; empty where the job cannot be read."""
        signature = job.signature()
        if self._index and signature is not None:
            known = self._index.configuration(job.dir.root, _stamp(signature))
            if known is not None:
                return known
        return _configuration(job)

    def value(self, job: Job, key: str) -> object:
        """Return one value of the configuration, None where there is none."""
        kept = self._kept.get(job.dir.root)
        if kept is None or kept.signature is None:
            return self.configuration(job).get(key)
        if key not in kept.values:
            kept.values[key] = self.configuration(job).get(key)
        return kept.values[key]

    def save(self) -> None:
        """Write what was read into the index."""
        with self._lock:
            new, self._new = self._new, []
        if self._index:
            self._index.keep(new)

    # -- one run --------------------------------------------------------------------------------

    def _fresh(self, job: Job) -> RunSummary | None:
        """Return the summary that still holds, None where the job has to be read."""
        kept = self._kept.get(job.dir.root)
        if kept and time.monotonic() < kept.until:
            return kept.summary
        signature = job.signature()
        if signature is None:
            return None
        if kept is None and self._index:
            text = self._index.summary(job.dir.root, _stamp(signature))
            summary = None if text is None else _summary_of(job.name, text)
            if summary:
                kept = self._kept[job.dir.root] = _Kept(signature, summary)
        holds = kept and kept.signature == signature and not kept.summary.problem
        return kept.summary if kept and holds and kept.summary.state not in GOES_ON else None

    def _read(self, job: Job) -> RunSummary:
        kept = self._kept.get(job.dir.root)
        # A run that goes on keeps its database open for the next look; of the others nothing is held.
        reader = job if kept and kept.summary.state in GOES_ON else Job(job.name, job.dir.root)
        signature = job.signature()
        began = time.thread_time()
        try:
            found = run_state.summary_of(reader)
        except Exception as error:
            found = RunSummary(job.name, run_state.without_figures(job), problem=shown(str(error)))
        cost = time.thread_time() - began
        until = time.monotonic() + _SHARE * cost if cost > _COSTLY_S else 0.0
        self._kept[job.dir.root] = _Kept(signature, found, until)
        if self._index and signature is not None and not found.problem and found.state not in GOES_ON:
            changed = max(times[2] for times in signature if times) / 1e9
            if abs(time.time() - changed) > _SETTLED_S:
                entry = IndexedRun(job.dir.root, _stamp(signature), asdict(found), _configuration(reader))
                with self._lock:
                    self._new.append(entry)
        return found

    # -- many runs ------------------------------------------------------------------------------

    def _read_beside(self, jobs: Sequence[Job]) -> None:
        """Read in a thread; one runs at a time."""
        with self._lock:
            self._queue |= {job.dir.root: job for job in jobs}
            if not self._queue or self._is_reading:
                return
            self._is_reading = True
        threading.Thread(target=self._work, daemon=True, name="studio-runs").start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._is_reading = False
                    break
                job = self._queue.pop(next(iter(self._queue)))
            if self._fresh(job) is None:
                self._read(job)
            if len(self._new) >= _AT_ONCE:
                self.save()
        self.save()


def _stamp(signature: Signature) -> str:
    return json.dumps(signature)


def _configuration(job: Job) -> Mapping[str, object]:
    try:
        return {key: hidden(key, value) for key, value in job.configuration().items()}
    except UserError:
        return {}


def _alert(found: Mapping[str, object]) -> Alert:
    since = found["since"]
    return Alert(
        str(found["kind"]),
        str(found["text"]),
        str(found["metric"]),
        None if since is None else int(str(since)),
    )


def _summary_of(name: str, found: Mapping[str, object]) -> RunSummary | None:
    """Return what ``asdict`` made of a summary; None for anything else, which is read again."""
    try:
        alerts = tuple(_alert(each) for each in found["alerts"])  # type: ignore[attr-defined]
        spark = tuple((int(step), float(value)) for step, value in found["spark"])  # type: ignore[attr-defined]
        reward, lag, tokens_per_s, step_s = (
            None if found[key] is None else float(str(found[key])) for key in _NUMBERS
        )
        step, total = int(str(found["step"])), None if found["total"] is None else int(str(found["total"]))
        state, failure = str(found["state"]), str(found["failure"])
        what, elapsed, left = (str(found[key]) for key in ("what", "elapsed", "left"))
        if state not in run_state.MEANS:
            return None
        figures = (reward, spark, lag, tokens_per_s, step_s)
        return RunSummary(name, state, step, total, *figures, alerts, "", failure, what, elapsed, left)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
