"""The guided tour of an empty studio: the toy is made, then trained."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from trinity_compat.common.bounded_process import BoundedProcess
from trinity_compat.common.errors import UserError
from trinity_compat.common.path_ownership import not_own
from trinity_compat.common.process_limits import ProcessLimits
from trinity_compat.common.python_command import of_module
from trinity_compat.common.redaction import shown
from trinity_compat.common.resources import data_path
from trinity_compat.studio import logs
from trinity_compat.studio.jobs import Jobs
from trinity_compat.studio.pages import form_of, page, studio_of
from trinity_compat.studio.start_drafts import StartDraft, StartDrafts
from trinity_compat.studio.start_page import drafts_of, refuse_read_only
from trinity_compat.studio.start_plan import StartFields, StartPlan, free_name, plan_of

_LIMITS = ProcessLimits(wall_s=1800)  # a minute on two idle cores
_SCRIPT = "examples/verl_scripts/run_toy_grpo.sh"
_NAME = "toy-grpo"  # of the run


class Toy:
    """The toy below the studio's folder: `trinity-compat toy`, its progress, its errors."""

    def __init__(self, studio_folder: Path) -> None:
        self.folder = studio_folder.resolve() / "toy"
        self.draft: StartDraft | None = None
        self._process: BoundedProcess | None = None
        self._lock = threading.Lock()

    def make(self) -> str:
        """Begin to make it, unless it is being made. Return '' or why not."""
        with self._lock:
            if self._process is not None and self._process.lives:
                return ""
            place = self.folder if os.path.lexists(self.folder) else self.folder.parent
            if problem := not_own(place):
                return f"The studio makes no toy there: {problem}"
            if self.folder.is_symlink():
                return f"The studio makes no toy there: {self.folder} is a link."
            try:
                command = of_module("trinity_compat", "toy", str(self.folder))
                self._process = BoundedProcess(command, self.folder.parent, os.environ, _LIMITS)
            except OSError as error:
                return f"The command could not be started: {error}"
            return ""

    @property
    def process(self) -> BoundedProcess | None:
        """The command of this studio that makes it, None before the first."""
        return self._process

    @property
    def problem(self) -> str:
        """Why it was not made, '' for none."""
        result = self._process.result if self._process else None
        if result is None or (result.code == 0 and not result.limit):
            return ""
        if result.limit:
            return f"The toy was not made: {result.limit}."
        said = logs.clean(result.err.strip() + "\n").strip()
        return f"The toy was not made (exit code {result.code}).\n{said}".rstrip()

    @property
    def is_made(self) -> bool:
        """True once this studio has made it, or found it made."""
        result = self._process.result if self._process else None
        return result is not None and not self.problem

    def plan(self, jobs: Jobs) -> StartPlan:
        """Return the plan of its run. Raises UserError."""
        fields = StartFields(name=free_name(jobs.root, _NAME), environment=f"TOY_DIR={self.folder}")
        try:
            return plan_of(fields, jobs, data_path(_SCRIPT).resolve())
        except FileNotFoundError as error:
            raise UserError(str(error)) from error

    def start(self, jobs: Jobs, drafts: StartDrafts) -> StartDraft:
        """Start its run, once. Raises UserError."""
        with self._lock:
            if not self.is_made:
                raise UserError("The toy is not made yet")
            if self.draft is not None and (self.draft.run is None or self.draft.run.lives):
                return self.draft
            draft = drafts.add(self.plan(jobs), checked=False)
            if problem := drafts.start(draft):
                raise UserError(problem)
            self.draft = draft
            return draft

    def close(self) -> None:
        """End the command that makes it."""
        if self._process is not None and self._process.lives:
            self._process.end()


async def tour(request: Request) -> Response:
    """Show how far the toy is; on POST begin to make it."""
    refuse_read_only(request)
    if request.method == "POST":
        await form_of(request)
    return await run_in_threadpool(_tour, request)


async def start(request: Request) -> Response:
    """Start the toy's run."""
    refuse_read_only(request)
    await form_of(request)
    return await run_in_threadpool(_start, request)


def _tour(request: Request) -> Response:
    toy = _toy_of(request)
    if request.method == "POST":
        if problem := toy.make():
            raise HTTPException(409, problem)
        return RedirectResponse(f"{studio_of(request).listener.base}/tour", 303)
    return _page(request, toy)


def _start(request: Request) -> Response:
    toy = _toy_of(request)
    try:
        draft = toy.start(studio_of(request).jobs, drafts_of(request))
    except UserError as error:
        return _page(request, toy, shown(str(error)), 409)
    return RedirectResponse(f"{studio_of(request).listener.base}/start/{draft.id}", 303)


def _page(request: Request, toy: Toy, problem: str = "", status: int = 200) -> Response:
    part = "part" in request.query_params
    values = {"toy": toy, "problem": problem}
    return page(request, "tour_state.html" if part else "tour.html", values, status=status)


def _toy_of(request: Request) -> Toy:
    found: Toy = request.app.state.toy
    return found
