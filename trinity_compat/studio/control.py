"""Stopping a run and going on with it. Both ask twice: the first page says exactly what will be done, and
only its form does it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from trinity_compat.buffer.errors import BufferError
from trinity_compat.errors import UserError
from trinity_compat.runtime.job.jobdir import side_locks
from trinity_compat.secret import masked
from trinity_compat.studio.guard import is_ours
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.pages import job_of, page, studio_of

_SPELLED = {"profiles": "profile", "sets": "set", "mains": "main"}  # options that can be given more than once


async def stop(request: Request) -> Response:
    """Ask, then send SIGTERM to the process that holds the job."""
    job = job_of(request)
    found = await run_in_threadpool(holders, job)
    if request.method == "GET":
        return page(request, "stop.html", {"job": job, "holders": found})
    await must_be_ours(request)
    for pid in found:
        os.kill(pid, signal.SIGTERM)
    return RedirectResponse(request.url_for("run", job=job.name).path, 303)


async def resume(request: Request) -> Response:
    """Ask, then start the recorded command again."""
    job = job_of(request)
    command, folder, why_not = await run_in_threadpool(_again, job)
    if request.method == "GET" or why_not:
        values = {
            "job": job,
            "command": shlex.join(masked(command)),
            "folder": str(folder),
            "why_not": why_not,
        }
        return page(request, "resume.html", values, status=409 if request.method == "POST" else 200)
    await must_be_ours(request)
    await run_in_threadpool(_start, command, folder, job)
    return RedirectResponse(request.url_for("run", job=job.name).path, 303)


async def must_be_ours(request: Request) -> None:
    """Raises HTTPException 403 for a form that this process did not make."""
    if not await is_ours(request, studio_of(request).door):
        raise HTTPException(
            403, "The form is not from this studio, or from an earlier start of it: open it again."
        )


def holders(job: Job) -> list[int]:
    """The processes of this machine that hold the job's locks; [] where nobody does, or another machine."""
    found = {pid for path in side_locks(job.dir) if (pid := _holder(path)) is not None}
    return sorted(found) if found and _is_here(job) else []


def _holder(path: Path) -> int | None:
    """Who wrote its pid into a lock that is held. Read off the kernel's list: trying the lock would hold
    it, and a run that starts at that moment would be refused."""
    try:
        pid, inode = path.read_text().strip(), str(path.stat().st_ino)
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except (OSError, UnicodeDecodeError):
        return None
    held = any(lock[1] == "FLOCK" and lock[4] == pid and lock[5].endswith(f":{inode}") for lock in locks)
    return int(pid) if held and int(pid) > 1 else None


def _is_here(job: Job) -> bool:
    """Whether the job's sides run on this machine: a pid of another one means something else here."""
    try:
        hosts = {who.host for who in job.buffer().participants()}
    except (UserError, BufferError):
        return False
    return hosts <= {socket.gethostname()}


def _again(job: Job) -> tuple[list[str], Path, str]:
    """(command, working directory, why it cannot be started or '')."""
    if holders(job):
        return [], job.dir.root, "It runs already."
    try:
        written_at = json.loads(job.dir.spec_path.read_text())["job_dir"]
        record = json.loads((job.dir.root / "config" / "launch.json").read_text())
        command, folder = command_of(record, job.dir.root), Path(record.get("cwd") or Path.cwd())
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [], job.dir.root, f"config/launch.json does not say how it was started ({error})."
    if Path(written_at) != job.dir.root:
        return command, folder, f"This is a copy: the recorded command would go on in {written_at}."
    if any("***" in word for word in command):
        return (
            command,
            folder,
            "Its command line held a secret, which is not recorded: start it in a terminal.",
        )
    return (
        command,
        folder,
        "" if folder.is_dir() else f"Its working directory {folder} is not there any more.",
    )


def command_of(record: dict[str, object], root: Path) -> list[str]:
    """The words of the ``trinity-compat run`` that config/launch.json records. Of a YAML the working
    directory is not recorded, so the job is named. Raises KeyError, TypeError."""
    options = record["options"]
    if not isinstance(options, dict):
        raise TypeError("options")
    source = str(record.get("script") or record["yaml"])
    if "script" not in record:
        options = {**options, "job": str(root)}
    words = [sys.executable, "-m", "trinity_compat", "run", source]
    for name, value in options.items():
        words += _option(f"--{_SPELLED.get(name, name.replace('_', '-'))}", value)
    arguments = record.get("script_arguments")
    return [*words, "--", *map(str, arguments)] if isinstance(arguments, Sequence) and arguments else words


def _option(name: str, value: object) -> list[str]:
    if value is None or value is False or (value == 0 and name == "--restarts"):
        return []
    if value is True:
        return [name]
    if isinstance(value, dict):
        value = [f"{key}={said}" for key, said in value.items()]
    return [word for each in (value if isinstance(value, list) else [value]) for word in (name, str(each))]


def _start(command: Sequence[str], folder: Path, job: Job) -> None:
    """On its own: in a session of its own, so that the studio's end is not the run's."""
    with (job.dir.root / "log" / "studio.log").open("ab") as log:
        subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
