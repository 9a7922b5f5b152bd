"""Runs that a page plans, checks and starts.

A draft lives in the studio's memory, since its environment may hold secrets. Its checks are the machine's
(doctor) and the launch's (a dry run, which executes nothing of a script), in processes of their own. It is
started once.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trinity_compat.common.bounded_process import BoundedProcess
from trinity_compat.common.errors import UserError
from trinity_compat.common.process_limits import ProcessLimits
from trinity_compat.common.python_command import of_module
from trinity_compat.common.redaction import shown
from trinity_compat.studio import logs
from trinity_compat.studio.private_files import cache_folder
from trinity_compat.studio.start_plan import StartPlan
from trinity_compat.studio.started_runs import StartedRun

# Processor time of each process: a machine that trains gives it slowly. The clock is for one that hangs.
_WALL_S = 3600
# Of the dry run, which reads a user's texts.
_CHECK = ProcessLimits(_WALL_S, cpu_s=600, memory=16 << 30, file=64 << 20)
_DOCTOR = ProcessLimits(_WALL_S, cpu_s=300)  # it starts a Ray, whose store is a large file
_MOST = 32  # drafts that are kept
_MOST_CHECKS = 2  # at once
_LINES = 40  # of a launcher's output
_TOLD = ("yaml", "notes", "plan", "blockers")
_ASKS = re.compile(r"(?:\S+:\d+: )?(?:warning|profile)\b")  # notes that a user should read before a start


@dataclass(frozen=True, slots=True)
class StartPoint:
    """A remark of the checks: ``error`` for what would stop the run, ``decide`` for what to look at."""

    rank: Literal["error", "decide"]
    text: str
    fix: str = ""


class StartCheck:
    """Both checks of a plan, side by side. ``studio_folder``: where a folder for the dry run may be made."""

    def __init__(self, plan: StartPlan, studio_folder: Path) -> None:
        """Start them. Raises OSError."""
        self._plan = plan
        scratch = Path(tempfile.mkdtemp(prefix=".trinity-compat-check-", dir=studio_folder))
        self._scratch_job = scratch / plan.root.name
        words = plan.command(self._scratch_job, dry_run=True, format="json")

        def clean() -> None:
            shutil.rmtree(scratch, ignore_errors=True)

        try:
            self.dry_run = BoundedProcess(words, plan.folder, plan.environ, _CHECK, clean)
        except OSError:
            clean()
            raise
        doctor = of_module("trinity_compat", "doctor", "--dir", str(studio_folder), "--format", "json")
        self.doctor = BoundedProcess(doctor, plan.folder, plan.environ, _DOCTOR)

    @property
    def lives(self) -> bool:
        """True until both have ended."""
        return self.dry_run.lives or self.doctor.lives

    @property
    def passed(self) -> bool:
        """True where the dry run took the launch."""
        return self.dry_run.result is not None and not self.problem

    @property
    def problem(self) -> str:
        """The reason for which the dry run refused the launch, '' for none or not yet."""
        result = self.dry_run.result
        if result is None:
            return ""
        if result.limit:
            return f"The dry run was ended: {result.limit}."
        if result.code != 0:
            text = logs.clean(result.err.strip() + "\n").strip()
            return self._with_real_folder(text) or f"The dry run ended with exit code {result.code}."
        return "" if self.launches() else "The dry run found no launch."

    def launches(self) -> list[dict[str, list[str]]]:
        """Return each launch of the dry run as lines: its YAML, notes, plan and blockers."""
        found = _section(self.dry_run.result.out if self.dry_run.result else "").get("launches")
        return [
            {name: _told(one.get(name), self._with_real_folder) for name in _TOLD}
            for one in (found if isinstance(found, list) else [])
            if isinstance(one, dict)
        ]

    def points(self) -> list[StartPoint]:
        """Return what would stop the run, then what to look at."""
        found = [StartPoint("error", self.problem)] if self.problem else []
        for launch in self.launches():
            found += [_point("error", text) for text in launch["blockers"]]
            found += [_point("decide", text) for text in launch["notes"] if _ASKS.match(text)]
        for one in self.machine():
            if one["state"] == "problem":
                found.append(StartPoint("error", f"{one['name']}: {one['found']}", one["fix"]))
        if problem := self.machine_problem():
            found.append(StartPoint("decide", f"this machine was not checked: {problem}"))
        return sorted(found, key=lambda point: point.rank == "decide")

    def machine(self) -> list[dict[str, str]]:
        """Return doctor's lines: name, state, what was found and what to do."""
        found = _section(self.doctor.result.out if self.doctor.result else "").get("checks")
        return [
            {name: shown(str(one.get(name) or "")) for name in ("name", "state", "found", "fix")}
            for one in (found if isinstance(found, list) else [])
            if isinstance(one, dict)
        ]

    def machine_problem(self) -> str:
        """Return why doctor has no answer, '' where it has one or is still at work."""
        result = self.doctor.result
        if result is None or self.machine():
            return ""
        if result.limit:
            return f"doctor was ended: {result.limit}."
        return logs.clean(result.err.strip() + "\n").strip() or f"doctor ended with exit code {result.code}."

    def end(self) -> None:
        """End both."""
        for process in (self.dry_run, self.doctor):
            process.end()

    def _with_real_folder(self, text: str) -> str:
        return text.replace(str(self._scratch_job), str(self._plan.root))


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

    def output(self) -> str:
        """Return the launcher's last lines."""
        return self.run.output(_LINES) if self.run else ""

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

    def _forget(self, draft: StartDraft) -> None:
        self._drafts.pop(draft.id, None)
        if draft.check.lives:
            draft.check.end()
        if draft.run is not None:
            with contextlib.suppress(OSError):
                draft.log.unlink()


def _section(text: str) -> Mapping[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _told(value: object, change: Callable[[str], str]) -> list[str]:
    """Return the lines of a text, or the texts of a list, as a page shows them."""
    lines = value.splitlines() if isinstance(value, str) else value if isinstance(value, list) else []
    return [shown(change(str(each))) for each in lines]


def _point(rank: Literal["error", "decide"], text: str) -> StartPoint:
    what, _, fix = text.partition(" → ")
    return StartPoint(rank, what, fix)
