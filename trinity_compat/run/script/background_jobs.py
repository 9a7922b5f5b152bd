"""Processes that a script started in the background and did not end."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from trinity_compat.common.redaction import masked
from trinity_compat.run.script.shim import SESSION

_ENDING_S = 5.0  # what a `trap "kill $!" EXIT` has just ended may take a moment
_LOOK_S = 0.2
_SHOWN = 120  # characters of a command
_NAMED = 3


def running_note(folder: Path, script: str) -> str:
    """Return a note on processes of the session in ``folder`` that still run, or "" if none do.

    They keep running, as under bash; Ctrl-C does not reach bash's background processes.
    """
    until = time.monotonic() + _ENDING_S
    while (found := list(_of_session(folder))) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    known = {process.pid for process in found}
    # Without those that another one of them started.
    processes = [process for process in found if _parent(process) not in known]
    if not processes:
        return ""
    named = [f"{_command_text(process)} (pid {process.pid})" for process in processes[:_NAMED]]
    more = [f"{len(processes) - _NAMED} more"] if len(processes) > _NAMED else []
    ends = " ".join(str(process.pid) for process in processes)
    return f"{script} left running: {', '.join([*named, *more])}; `kill {ends}` ends it"


def _of_session(folder: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.environ().get(SESSION) == str(folder) and process.pid != os.getpid():
                yield process
        except psutil.Error:  # another user's, or it has ended
            continue


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None


def _command_text(process: psutil.Process) -> str:
    try:
        text = shlex.join(masked(process.cmdline()))
    except psutil.Error:
        return "a process"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
