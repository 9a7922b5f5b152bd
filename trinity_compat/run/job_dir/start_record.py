"""A start of a run: its phases with their times, how it ended, and what the launcher printed.

``log/phases.json`` and ``log/launcher.log`` in the job; those of a side that is a command of its own have its
name in theirs (``log/phases-train.json``). The launcher alone writes them, while it holds the job.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trinity_compat.common import file_modes, regular_files
from trinity_compat.common.atomic_write import write_text
from trinity_compat.common.plain_numbers import is_number
from trinity_compat.common.redaction import shown
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.job_dir.progress import copied_to
from trinity_compat.run.job_dir.snapshot import Snapshot, age

CHECKS, RAY, ENGINE, WEIGHTS, ANSWERS = "checks", "Ray", "engine", "weights", "first answers"
NAME = re.compile(r"phases(|-train|-explore(?:-\d{1,4})?)\.json")
_EARLY = 1000  # lines that are kept until the job is held
_LONGEST = 2000  # characters of a reason


@dataclass(slots=True)
class Phase:
    """One phase. Times are seconds since 1970; None before it began, or until it has ended."""

    name: str
    began: float | None = None
    ended: float | None = None

    def took_s(self, now: float) -> float:
        """Seconds of the phase so far, 0.0 before it began."""
        return 0.0 if self.began is None else max(0.0, (self.ended or now) - self.began)


@dataclass(frozen=True, slots=True)
class StartEnd:
    """The end of a run. ``failure`` is '' after a good end or a signal; ``log`` names a file in log/."""

    code: int
    failure: str
    log: str
    at: float


@dataclass(frozen=True, slots=True)
class RecordedStart:
    """One start of a run, as its launcher recorded it."""

    began: float
    phases: Sequence[Phase]
    end: StartEnd | None = None
    side: str = ""  # train or explore where the side is a command of its own

    @classmethod
    def of_text(cls, text: str, side: str = "") -> RecordedStart:
        """Read a record. Raises ValueError for anything else."""
        try:
            found = json.loads(text)
            phases = [
                Phase(_text(one["name"]), _time(one["began"]), _time(one["ended"]))
                for one in found["phases"][:20]
            ]
            began, end = _time(found["began"]), found["end"]
            if began is None:
                raise ValueError("the start has no time")
            return cls(began, phases, None if end is None else _end(end), side)
        except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise ValueError(f"not a record of a start: {type(error).__name__} {error}") from error

    def as_text(self) -> str:
        """Return the content of the file."""
        phases = [asdict(phase) for phase in self.phases]
        record = {"began": self.began, "phases": phases, "end": self.end and asdict(self.end)}
        return json.dumps(record, indent=1) + "\n"


def line(start: RecordedStart, now: float, *, live: bool) -> str:
    """Return the phases with their times: ``checks 9 s, Ray 4 s, engine for 12 s``."""
    words = []
    for phase in start.phases:
        if phase.ended is not None:
            words.append(f"{phase.name} {age(phase.took_s(now))}")
        elif phase.began is not None:
            words.append(
                f"{phase.name} for {age(phase.took_s(now))}" if live else f"{phase.name} not reached"
            )
    return ", ".join(words)


def read(job: JobDir) -> list[RecordedStart]:
    """Return the newest start of each command of the run; a file that is not a record is left out."""
    found = []
    for path in sorted((job.root / "log").glob("phases*.json")):
        if name := NAME.fullmatch(path.name):
            with contextlib.suppress(OSError, ValueError):
                found.append(RecordedStart.of_text(regular_files.followed_text(path), name[1].lstrip("-")))
    return found


def phase_names(spec: RunSpec) -> list[str]:
    """Return the phases of a start in their order."""
    has_answers = spec.rows is None
    engine = [ENGINE] if has_answers and spec.mode != "train" else []
    return [CHECKS, RAY, *engine, WEIGHTS, *([ANSWERS] if has_answers else [])]


@dataclass
class StartRecorder:
    """Records one start. Nothing is written before ``hold``, when the job is this start's.

    A record that cannot be written never ends the run.
    """

    job: JobDir
    spec: RunSpec
    explorer: int | None = None
    clock: Callable[[], float] = time.time
    _phases: dict[str, Phase] = field(init=False)
    _end: StartEnd | None = field(default=None, init=False)
    _early: list[str] = field(default_factory=list, init=False)
    _held: bool = field(default=False, init=False)
    _open: bool = field(default=True, init=False)  # some phase has not ended

    def __post_init__(self) -> None:
        self._phases = {name: Phase(name) for name in phase_names(self.spec)}
        self._began = self.clock()
        self._phases[CHECKS].began = self._began
        alone = self.spec.mode in ("train", "explore")
        number = "" if self.explorer is None else f"-{self.explorer}"
        self._suffix = f"-{self.spec.mode}{number}" if alone else ""

    @contextlib.contextmanager
    def recording(self) -> Iterator[StartRecorder]:
        """Copy what the launcher prints in the block into its log."""
        with copied_to(self._copy):
            yield self

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Write from here on: the block holds the job. An exception that leaves it is recorded as the end."""
        self._held = True
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._began))
        self._append([f"--- start of {at}, process {os.getpid()} ---", *self._early])
        self._early = []
        self.next(CHECKS, RAY)
        try:
            yield
        except BaseException as error:
            self.finish(1, str(error) or type(error).__name__)
            raise

    def next(self, ended: str, *begun: str) -> None:
        """Record that a phase has ended, and that others begin with its end."""
        now = self.clock()
        self._phases[ended].ended = now
        for name in begun:
            if name in self._phases:
                self._phases[name].began = now
        self._write()

    def look(self, snapshot: Snapshot | None) -> None:
        """Record the phases that the database shows to have ended."""
        if snapshot is None or not self._open:
            return
        now, changed = self.clock(), False
        for name, at in self._reached(snapshot, now):
            self._phases[name].ended = at
            changed = True
        answers = self._phases.get(ANSWERS)
        earlier = [phase for phase in self._phases.values() if phase is not answers]
        if answers and answers.began is None and all(phase.ended for phase in earlier):
            answers.began, changed = max(phase.ended or now for phase in earlier), True
        self._open = any(phase.ended is None for phase in self._phases.values())
        if changed:
            self._write()

    def _reached(self, snapshot: Snapshot, now: float) -> Iterator[tuple[str, float]]:
        running = {name for name, each in self._phases.items() if each.began is not None and not each.ended}
        states: dict[str, list[str]] = {"explorer": [], "trainer": []}
        for one in snapshot.participants:
            states.setdefault(one.role, []).append(one.state)
        if ENGINE in running and _has_started(states["explorer"]):
            yield ENGINE, now
        has_trainer = self.spec.mode == "explore" or _has_started(states["trainer"])
        if (
            WEIGHTS in running
            and has_trainer
            and (snapshot.version is not None or self.spec.rows is not None)
        ):
            yield WEIGHTS, now
        began = self._phases[ANSWERS].began if ANSWERS in running else None
        sides_began = self._phases[RAY].ended or math.inf
        if began is not None and snapshot.quiet_s is not None and now - snapshot.quiet_s >= sides_began:
            yield ANSWERS, max(began, now - snapshot.quiet_s)

    def finish(self, code: int, failure: str = "", log: str = "") -> None:
        """Record the end. ``log``: the file that tells more, anywhere in the job's log folder."""
        if not self._held:
            return
        try:
            name = Path(log).relative_to(self.job.root / "log").as_posix() if log else ""
        except ValueError:
            name = ""
        failure = shown(failure)
        self._end = StartEnd(code, failure[:_LONGEST], name, self.clock())
        self._append([f"error: {failure}" if failure else f"ended with code {code}"])
        self._write()

    def _write(self) -> None:
        if self._held:
            start = RecordedStart(self._began, list(self._phases.values()), self._end)
            with contextlib.suppress(OSError), file_modes.umask(self.job.umask):
                write_text(self.job.root / "log" / f"phases{self._suffix}.json", start.as_text())

    def _copy(self, text: str) -> None:
        if self._held:
            self._append([text])
        elif len(self._early) < _EARLY:
            self._early.append(text)

    def _append(self, lines: Sequence[str]) -> None:
        text = "".join(f"{shown(each)}\n" for line in lines for each in line.splitlines() or [""])
        path = self.job.log(f"launcher{self._suffix}")
        with (
            contextlib.suppress(OSError),
            file_modes.umask(self.job.umask),
            regular_files.appended(path) as log,
        ):
            log.write(text.encode(errors="replace"))


def _has_started(states: Sequence[str]) -> bool:
    return bool(states) and all(state not in ("starting", "failed") for state in states)


def _end(found: dict[str, object]) -> StartEnd:
    code, at = found["code"], _time(found["at"])
    if not isinstance(code, int) or at is None:
        raise ValueError("the end has no code or time")
    return StartEnd(code, _text(found["failure"])[:_LONGEST], _text(found["log"]), at)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not a text: {value!r}")
    return value


def _time(value: object) -> float | None:
    if value is None:
        return None
    if not is_number(value) or not math.isfinite(value):
        raise ValueError(f"not a time: {value!r}")
    return float(value)
