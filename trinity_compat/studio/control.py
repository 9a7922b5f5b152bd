"""Stopping and resuming a run.

Both need a confirmation: the first page describes the action, and only its form performs it. Neither acts on
a file that another user could have written (``path_ownership``).
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from trinity_compat.buffer.errors import BufferError
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import value_at
from trinity_compat.common.path_ownership import not_own, not_own_tree
from trinity_compat.common.redaction import masked, shown
from trinity_compat.job import stop_request
from trinity_compat.job.checkpoints import MARKER
from trinity_compat.job.stop_request import AFTER_STEP, NOW, StopMoment
from trinity_compat.run.job_dir import resume_point
from trinity_compat.run.job_dir.job_dir import identity_of, lock_path, side_locks
from trinity_compat.run.job_dir.snapshot import StepFigures, age, training_rows
from trinity_compat.studio import job_files
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.pages import form_of, job_of, page, page_of
from trinity_compat.studio.resume_changes import (
    ResumeChange,
    configuration_changes,
    environment_changes,
    missing_secrets,
    recorded_environment,
)
from trinity_compat.studio.started_runs import StartedRun
from trinity_compat.studio.starts import asked_to_stop, starts_of, state_of

_DONE = "The run has trained all its steps, so there is nothing to resume."
_OPTION_NAMES = {"profiles": "profile", "sets": "set", "mains": "main"}  # repeatable options


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A process of this machine that holds a lock of a job. ``identity`` is the text in the lock file."""

    pid: int
    identity: str
    lock: Path

    def ownership_problem(self) -> str:
        """Return '' for this user's process that wrote the lock, else a sentence with the problem."""
        if problem := not_own(self.lock):
            return problem
        if self.identity == str(self.pid):
            return (
                f"{self.lock} does not record when process {self.pid} started, so it may be another process."
            )
        if identity_of(self.pid) != self.identity:
            return f"Process {self.pid} did not write {self.lock}: its number was reused."
        try:
            owner = (Path("/proc") / str(self.pid)).stat().st_uid
        except OSError:
            return f"Process {self.pid} has ended."
        return "" if owner == os.geteuid() else f"Process {self.pid} is not yours."


async def stop(request: Request) -> Response:
    """Show the confirmation page; on its form, ask for the end of the run after its step, or at once."""
    moment = AFTER_STEP
    if request.method == "POST" and (await form_of(request)).get("moment") == NOW:
        moment = NOW
    job = await run_in_threadpool(job_of, request)
    found = await run_in_threadpool(holders, job)
    why_not = await run_in_threadpool(_stop_refusal, job, found)
    if request.method != "POST" or why_not:
        point = await run_in_threadpool(_stop_point, job)
        values = {"job": job, "holders": [holder.pid for holder in found], "why_not": why_not} | point
        return page(request, "stop.html", values, status=409 if request.method == "POST" else 200)
    await run_in_threadpool(_ask, job, moment)
    for holder in found if moment == NOW else ():
        if problem := await run_in_threadpool(_end, holder):
            raise HTTPException(409, problem)
    return RedirectResponse(page_of(request, "run", job), 303)


async def resume(request: Request) -> Response:
    """Show the confirmation page; on its form, start the recorded command again."""
    if request.method == "POST":
        await form_of(request)
    job = await run_in_threadpool(job_of, request)
    command, folder, why_not = await run_in_threadpool(_resume_command, job)
    if request.method != "POST" or why_not:
        values = {
            "job": job,
            "command": shlex.join(masked(command)),
            "folder": str(folder),
            "why_not": why_not,
            "since": None if why_not else await run_in_threadpool(_since_last_start, job, folder),
        }
        return page(request, "resume.html", values, status=409 if request.method == "POST" else 200)
    await run_in_threadpool(_start, command, folder, job)
    return RedirectResponse(page_of(request, "run", job), 303)


# -- stopping -----------------------------------------------------------------------------------


def holders(job: Job) -> list[LockHolder]:
    """Return this machine's processes that hold the job's locks, [] if the job runs on another machine."""
    found = {one.pid: one for path in side_locks(job.dir) if (one := _holder(path)) is not None}
    return [found[pid] for pid in sorted(found)] if found and _is_here(job) else []


def _holder(path: Path) -> LockHolder | None:
    """Return the process that holds a lock and wrote its pid into it, or None if the lock is free.

    Read the kernel's list of locks: trying the lock would hold it, and a run that starts at that moment would
    be refused.
    """
    try:
        with job_files.opened(path) as file:
            identity = file.read(128).decode(errors="replace").strip()
            inode = os.fstat(file.fileno()).st_ino
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    pid = identity.partition(" ")[0]
    held = any(lock[1] == "FLOCK" and lock[4] == pid and lock[5].endswith(f":{inode}") for lock in locks)
    return LockHolder(int(pid), identity, path) if held and pid.isdecimal() and int(pid) > 1 else None


def _is_here(job: Job) -> bool:
    """Return whether the job's processes run on this machine, so that their pids are valid here."""
    try:
        hosts = {one.host for one in job.buffer().participants()}
    except (UserError, BufferError):
        return False
    return hosts <= {socket.gethostname()}


def _stop_refusal(job: Job, found: Sequence[LockHolder]) -> str:
    problems = (job.not_own(), *(holder.ownership_problem() for holder in found))
    problem = next((problem for problem in problems if problem), "")
    return f"The studio does not stop this run: {problem}" if problem else ""


def _stop_point(job: Job) -> dict[str, object]:
    """Return what a stop would keep and lose, for the page that asks."""
    try:
        rows = training_rows(job.buffer().read_metrics("trainer", newest=1))
    except (UserError, BufferError):
        rows = []
    last = rows[-1] if rows else StepFigures(0)
    kept = job.latest_checkpoint or 0
    return {
        "step": last.step,
        "step_s": "" if last.step_s is None else age(last.step_s),
        "kept": kept,
        "lost": max(0, last.step - kept),
        "asked": asked_to_stop(job),
    }


def _ask(job: Job, moment: StopMoment) -> None:
    """Write the request into the job, where the trainer and the pages read it."""
    try:
        with job_files.appended(stop_request.path_of(job.dir.root)) as file:
            file.write(f"{moment}\n".encode())
    except OSError as error:
        if moment == AFTER_STEP:  # a signal ends a run whose disk is full
            raise HTTPException(409, f"The request cannot be written into the job: {error}") from error


def _end(holder: LockHolder) -> str:
    """Send SIGTERM through a pidfd, which no later process of that pid shares; return '' or a problem."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(holder.pid)
        try:
            if problem := holder.ownership_problem():
                return problem
            signal.pidfd_send_signal(handle, signal.SIGTERM)
        finally:
            os.close(handle)
    return ""


# -- resuming -----------------------------------------------------------------------------------


def action_refusals(job: Job, *, read_only: bool) -> dict[str, str]:
    """Return why ``stop`` and ``resume`` are not offered, '' where they are."""
    if read_only:
        return dict.fromkeys(("stop", "resume"), "The studio was started with --read-only.")
    return {"stop": _stop_refusal(job, holders(job)), "resume": _DONE if _is_done(job) else _recorded(job)[2]}


def _resume_command(job: Job) -> tuple[list[str], Path, str]:
    """Return (command, working directory, why it cannot be started or '')."""
    if holders(job):
        return [], job.dir.root, "The run is already running."
    if job.resumed and job.resumed.lives:
        return [], job.dir.root, job.resumed.message(running=False)
    if _is_done(job):
        return [], job.dir.root, _DONE
    return _recorded(job)


def _recorded(job: Job) -> tuple[list[str], Path, str]:
    root = job.dir.root
    if problem := job.not_own():
        return [], root, f"The studio does not resume this run: {problem}"
    try:
        record = json.loads(job_files.text(root / "config" / "launch.json"))
        command = command_of(record, root)
        folder = Path(str(record.get("started_in") or record.get("cwd") or Path.cwd()))
        problems = [problem for problem in _writable_inputs(job, record, folder) if problem]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [], root, f"config/launch.json does not record how the run was started ({error})."
    if made_in := job.copied_from:
        return command, folder, f"This is a copy: the recorded command would continue the run in {made_in}."
    if any("***" in word for word in command):
        return (
            command,
            folder,
            "Its command line contained a secret, which is not recorded. Resume it in a terminal.",
        )
    if not folder.is_dir():
        return command, folder, f"Its working directory {folder} no longer exists."
    if problems:
        return command, folder, f"The studio does not resume this run: {problems[0]}"
    # Would the command continue from the newest checkpoint?
    point = resume_point.of(root, job.spec)
    resumes = job.spec.resume and value_at(job.spec.verl, "trainer.resume_mode", "auto") == "auto"
    return command, folder, f"{point.problem}: {point.hint}." if point.problem and resumes else ""


def _is_done(job: Job) -> bool:
    try:
        participants = job.buffer().participants()
        return state_of(participants, starts_of(job), asked_to_stop(job)) == "done" or any(
            one.role == "trainer" and one.state == "done" for one in participants
        )
    except (UserError, BufferError):
        return False


def _writable_inputs(job: Job, record: dict[str, object], folder: Path) -> Iterator[str]:
    """Yield '' or a sentence on who else could change it, for each path that a resume reads or runs."""
    root = job.dir.root
    checkpoint = f"global_step_{job.latest_checkpoint}"
    for place in (root / name for name in ("config", "buffer", "log", MARKER, checkpoint)):
        if os.path.lexists(place):
            yield not_own_tree(place)
    locks = (lock_path(job.dir, "start"), *side_locks(job.dir))
    for place in (*dict.fromkeys(lock.parent for lock in locks), *locks):
        if os.path.lexists(place):
            yield not_own(place)
    yield not_own(folder, or_root=True)
    yield not_own(folder / str(record.get("script") or record["yaml"]), or_root=True)
    options = record["options"]
    plugins = options.get("plugin_dirs") if isinstance(options, dict) else None
    for plugin in plugins if isinstance(plugins, list) else ():
        yield not_own(folder / str(plugin), or_root=True)


def command_of(record: Mapping[str, object], root: Path) -> list[str]:
    """Return the arguments of the ``trinity-compat run`` that config/launch.json records.

    The record of a YAML has no working directory, so the job directory is given. Raises KeyError, TypeError.
    """
    options = record["options"]
    if not isinstance(options, dict):
        raise TypeError("options")
    source = str(record.get("script") or record["yaml"])
    if "script" not in record:
        options = {**options, "job": str(root)}
    # -P: no module comes from the working directory.
    words = [sys.executable, "-P", "-m", "trinity_compat", "run", source]
    for name, value in options.items():
        words += _option(f"--{_OPTION_NAMES.get(name, name.replace('_', '-'))}", value)
    arguments = record.get("script_arguments")
    return [*words, "--", *map(str, arguments)] if isinstance(arguments, Sequence) and arguments else words


def _option(name: str, value: object) -> list[str]:
    if value is None or value is False or (value == 0 and name == "--restarts"):
        return []
    if value is True:
        return [name]
    if isinstance(value, dict):
        value = [f"{key}={text}" for key, text in value.items()]
    return [word for each in (value if isinstance(value, list) else [value]) for word in (name, str(each))]


@dataclass(frozen=True, slots=True)
class SinceLastStart:
    """Differences of a resume from the last start. ``unread``: why the script tells nothing."""

    configuration: Sequence[ResumeChange]
    unread: str
    environment: Sequence[ResumeChange] | None  # None where the run recorded none
    secrets: Sequence[str]
    missing: Sequence[str]


def _since_last_start(job: Job, folder: Path) -> SinceLastStart:
    recorded = recorded_environment(job)
    environ = dict(os.environ) if recorded is None else recorded.applied(os.environ)
    changes: Sequence[ResumeChange] = ()
    unread = ""
    try:
        record = json.loads(job_files.text(job.dir.root / "config" / "launch.json"))
        changes = configuration_changes(job, record, folder, environ)
    except (UserError, OSError, ValueError) as error:
        unread = shown(str(error))
    if recorded is None:
        return SinceLastStart(changes, unread, None, (), ())
    return SinceLastStart(
        changes,
        unread,
        environment_changes(recorded, os.environ),
        sorted(recorded.secrets),
        missing_secrets(recorded, os.environ),
    )


def _start(command: Sequence[str], folder: Path, job: Job) -> None:
    recorded = recorded_environment(job)
    env = None if recorded is None else recorded.applied(os.environ)
    try:
        job.resumed = StartedRun(command, folder, job.dir.log("studio"), env)
    except OSError as error:
        raise HTTPException(409, f"The command could not be started: {error}") from error
