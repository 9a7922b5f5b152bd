"""Runs that a page plans, checks and starts.

A draft lives in the studio's memory, since its environment may hold secrets. Its checks are the machine's
(doctor) and the launch's (a dry run, which executes nothing of a script), in processes of their own. It is
started once.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from trinity_compat.common.bounded_process import BoundedProcess
from trinity_compat.common.errors import UserError
from trinity_compat.common.process_limits import ProcessLimits
from trinity_compat.common.python_command import of_module
from trinity_compat.common.redaction import shown
from trinity_compat.studio import logs
from trinity_compat.studio.private_files import cache_folder
from trinity_compat.studio.start_plan import StartPlan, dry_run_of
from trinity_compat.studio.started_runs import StartedRun

# Processor time of each process: a machine that trains gives it slowly. The clock is for one that hangs.
_WALL_S = 3600
# Of the dry run, which reads a user's texts.
_CHECK = ProcessLimits(_WALL_S, cpu_s=600, memory=16 << 30, file=64 << 20)
_DOCTOR = ProcessLimits(_WALL_S, cpu_s=300)  # it starts a Ray, whose store is a large file
_MOST = 32  # drafts that are kept
_MOST_CHECKS = 2  # at once
_MOST_CONFIGURED = 8  # dry runs of the page Configure that are kept
_TOLD = ("yaml", "notes", "plan")
_ASKS = re.compile(r"(?:\S+:\d+: )?(?:warning|profile)\b")  # notes that a user should read before a start


@dataclass(frozen=True, slots=True)
class StartPoint:
    """A remark of the checks: ``error`` for what would stop the run, ``decide`` for what to look at."""

    rank: Literal["error", "decide"]
    text: str
    fix: str = ""


class LaunchCheck:
    """The dry run of a launch. ``job``: the run's folder, as its messages name it."""

    def __init__(
        self,
        words: Callable[[Path], list[str]],
        job: Path,
        studio_folder: Path,
        folder: Path,
        environ: Mapping[str, str],
    ) -> None:
        """Start it: ``words`` returns its command for a job in a scratch folder. Raises OSError."""
        scratch = Path(tempfile.mkdtemp(prefix=".trinity-compat-check-", dir=studio_folder))
        self._names = {str(scratch / job.name): str(job), f"{scratch}/": ""}

        def clean() -> None:
            shutil.rmtree(scratch, ignore_errors=True)

        try:
            self.dry_run = BoundedProcess(words(scratch / job.name), folder, environ, _CHECK, clean)
        except OSError:
            clean()
            raise
        self.processes = [self.dry_run]

    @property
    def lives(self) -> bool:
        """True until all have ended."""
        return any(process.lives for process in self.processes)

    @property
    def passed(self) -> bool:
        """True where the dry run took the launch."""
        return self.dry_run.result is not None and not self.problem

    @property
    def problem(self) -> str:
        """The reason for which the dry run refused the launch, '' for none or not yet."""
        if self.dry_run.lives:
            return ""
        failure = self._failure(self.dry_run, "The dry run")
        return failure or ("" if self.launches() else "The dry run found no launch.")

    def launches(self) -> list[dict[str, list[str]]]:
        """Return each launch of the dry run as lines: its YAML, notes and plan."""
        return [
            {name: self._lines(one.get(name)) for name in _TOLD} for one in _rows(self.dry_run, "launches")
        ]

    def lacks(self) -> list[StartPoint]:
        """Return what a run on this machine would end with, though the dry run takes it."""
        told = [each for one in _rows(self.dry_run, "launches") for each in one.get("blockers", ())]
        return [
            StartPoint("error", *(self._told(each[name]) for name in ("message", "fix"))) for each in told
        ]

    def points(self) -> list[StartPoint]:
        """Return what would stop the run, then what to look at."""
        message, _, fix = self.problem.removeprefix("error: ").partition("\n  hint: ")
        found = [StartPoint("error", message, fix)] if message else []
        notes = [text for launch in self.launches() for text in launch["notes"] if _ASKS.match(text)]
        return [*found, *self.lacks(), *(StartPoint("decide", text) for text in notes)]

    def end(self) -> None:
        """End what is at work."""
        for process in self.processes:
            process.end()

    def _failure(self, process: BoundedProcess, name: str) -> str:
        """Return why a process has no answer, '' where it has one or is at work."""
        result = process.result
        if result is None or (result.code == 0 and not result.limit):
            return ""
        if result.limit:
            return f"{name} was ended: {result.limit}."
        return self._told(result.err) or f"{name} ended with exit code {result.code}."

    def _told(self, text: str) -> str:
        for name, real in self._names.items():
            text = text.replace(name, real)
        return logs.clean(shown(text.strip()) + "\n").strip()

    def _lines(self, value: object) -> list[str]:
        """Return the lines of a text, or the texts of a list, as a page shows them."""
        lines = value.splitlines() if isinstance(value, str) else value if isinstance(value, list) else []
        return [self._told(str(each)) for each in lines]


class StartCheck(LaunchCheck):
    """The checks of a plan, side by side: the dry run, and the machine's."""

    def __init__(self, plan: StartPlan, studio_folder: Path) -> None:
        """Start them. Raises OSError."""
        words = partial(plan.command, dry_run=True, format="json")
        super().__init__(words, plan.root, studio_folder, plan.folder, plan.environ)
        doctor = of_module("trinity_compat", "doctor", "--dir", str(studio_folder), "--format", "json")
        self.doctor = BoundedProcess(doctor, plan.folder, plan.environ, _DOCTOR)
        self.processes.append(self.doctor)

    def points(self) -> list[StartPoint]:
        """Return what would stop the run, then what to look at."""
        found = super().points()
        for one in self.machine():
            if one["state"] == "problem":
                found.append(StartPoint("error", f"{one['name']}: {one['found']}", one["fix"]))
        if not self.machine() and (problem := self._failure(self.doctor, "doctor")):
            found.append(StartPoint("decide", f"this machine was not checked: {problem}"))
        return sorted(found, key=lambda point: point.rank == "decide")

    def machine(self) -> list[dict[str, str]]:
        """Return doctor's lines: name, state, what was found and what to do."""
        names = ("name", "state", "found", "fix")
        return [
            {name: shown(str(one.get(name) or "")) for name in names} for one in _rows(self.doctor, "checks")
        ]


@dataclass(slots=True)
class StartDraft:
    """A planned run. ``run`` is its process once it has been started."""

    id: str
    plan: StartPlan
    check: StartCheck
    run: StartedRun | None = None
    log: Path = field(default_factory=Path)

    @property
    def lives(self) -> bool:
        """True while something of it runs."""
        return bool(self.run and self.run.lives) or self.check.lives

    def ended(self) -> str:
        """Return how the launch ended, '' while it lives or before."""
        if self.run is None or self.run.lives:
            return ""
        code = self.run.code or 0
        if code == 2:
            return "The launch was refused (exit code 2): nothing was started."
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"The launch ended {how} before it made a job."


class StartDrafts:
    """The drafts of a studio, the newest ones."""

    def __init__(self, studio_folder: Path) -> None:
        self._folder = studio_folder
        self._drafts: dict[str, StartDraft] = {}
        self._configured: dict[str, LaunchCheck] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> StartDraft | None:
        """Return the draft of that id."""
        return self._drafts.get(name)

    def add(self, plan: StartPlan) -> StartDraft:
        """Make a draft and begin its checks. Raises UserError where too many are at work, or none starts."""
        with self._lock:
            at_work = sum(one.check.lives for one in self._drafts.values())
            if at_work >= _MOST_CHECKS:
                raise UserError(f"{at_work} checks are at work: wait for one of them, and try again")
            try:
                check = StartCheck(plan, self._folder)
            except OSError as error:
                raise UserError(f"The checks cannot start: {error}") from error
            draft = StartDraft(secrets.token_urlsafe(9), plan, check)
            self._drafts[draft.id] = draft
            for old in [one for one in self._drafts.values() if not one.lives][:-_MOST]:
                self._forget(old)
            return draft

    def check_configured(self, text: str) -> str:
        """Begin the dry run of a Trinity YAML, and end those before it. Return its id. Raises OSError."""
        with self._lock:
            self._end_configured()
            words, name = partial(dry_run_of, text), secrets.token_urlsafe(9)
            self._configured[name] = LaunchCheck(
                words, self._folder / "run", self._folder, self._folder, os.environ
            )
            for gone in list(self._configured)[:-_MOST_CONFIGURED]:
                del self._configured[gone]
            return name

    def _end_configured(self) -> None:
        for old in self._configured.values():
            old.end()

    def configured_check(self, name: str) -> LaunchCheck | None:
        """Return the dry run of that id."""
        return self._configured.get(name)

    def start(self, draft: StartDraft) -> str:
        """Start the draft's run, once. Return '' or why it is not started."""
        with self._lock:
            if draft.run is not None and draft.run.lives:
                return ""
            others = [one for one in self._drafts.values() if one is not draft and one.run and one.run.lives]
            if any(one.plan.root == draft.plan.root for one in others):
                return f"A run named {draft.plan.name} is starting: give this one another name."
            if not draft.check.passed:
                return "The launch is still being checked." if draft.check.lives else draft.check.problem
            if problem := draft.plan.refusal():
                return problem
            try:
                draft.log = cache_folder() / "starts" / f"{draft.id}.log"
                draft.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                draft.run = StartedRun(
                    draft.plan.command(), draft.plan.folder, draft.log, draft.plan.environ, action="start"
                )
            except OSError as error:
                return f"The command could not be started: {error}"
            return ""

    def launching(self) -> list[StartDraft]:
        """Return those whose run's launcher is at work."""
        return [one for one in list(self._drafts.values()) if one.run and one.run.lives]

    def close(self) -> None:
        """End all checks; the runs go on."""
        for draft in list(self._drafts.values()):
            self._forget(draft)
        self._end_configured()

    def _forget(self, draft: StartDraft) -> None:
        self._drafts.pop(draft.id, None)
        if draft.check.lives:
            draft.check.end()
        if draft.run is not None:
            with contextlib.suppress(OSError):
                draft.log.unlink()


def _rows(process: BoundedProcess, name: str) -> list[dict[str, Any]]:
    """Return a list of the JSON that a command has printed, [] before and for another text."""
    try:
        found = json.loads(process.result.out if process.result else "")[name]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []
    return found if isinstance(found, list) and all(isinstance(one, dict) for one in found) else []
