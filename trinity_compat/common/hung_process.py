"""A process that hangs: its state and stacks for the log, and its end. SIGKILL ends a stopped one too."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # planning a run works without it
    import psutil

_DUMP_S = 15.0  # for all of a process and those below it


@dataclass(frozen=True, slots=True)
class HungProcess:
    """``name`` (engine 0) with ``pid`` on this machine, or on ``host``; ``started``: its start, in seconds
    since the epoch, so that no other process is taken for it. ``kill`` ends one elsewhere."""

    name: str
    pid: int
    started: float | None = None
    host: str = ""
    kill: Callable[[], object] = lambda: None


def identity() -> dict[str, object]:
    """This process, as others on its machine find it."""
    import psutil

    return {"pid": os.getpid(), "started": psutil.Process().create_time()}


def suspect(
    name: str, where: Mapping[str, object], *, node: str, kill: Callable[[], object] = lambda: None
) -> HungProcess:
    """From what ``identity`` gave, and the ``node`` and ``host`` beside it; ``node``: this process's own."""
    host = "" if where["node"] == node else str(where["host"])
    pid, started = int(str(where["pid"])), float(str(where["started"]))
    return HungProcess(name, pid, started, host, kill)


def describe(who: HungProcess) -> str:
    """``engine 0, pid 12, stopped``."""
    if who.host:
        return f"{who.name}, pid {who.pid} on {who.host}"
    return f"{who.name}, pid {who.pid}, {_state(who)}"


def stopped_first(suspects: Iterable[HungProcess]) -> list[HungProcess]:
    """Those that a signal has stopped before the others: these may only wait for them."""
    return sorted(suspects, key=lambda each: bool(each.host) or _state(each) != "stopped")


def stack(who: HungProcess) -> str:
    """Stacks of it and the processes below it by py-spy, or why there are none."""
    if who.host:
        return f"{describe(who)}: its stacks can be seen on {who.host} only"
    until, found = time.monotonic() + _DUMP_S, list[str]()
    for process in _with_children(who):
        if (left := until - time.monotonic()) > 0:
            found.append(_stack_of(process.pid, left))
    return "\n".join(found) or f"{describe(who)}: it has ended"


def kill(who: HungProcess) -> None:
    """SIGKILL to it and to the processes below it."""
    for process in _with_children(who) if not who.host else ():
        with contextlib.suppress(_errors()):
            process.kill()
    with contextlib.suppress(Exception):  # Ray may be gone
        who.kill()


def _stack_of(pid: int, limit_s: float) -> str:
    tool = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    if tool is None:
        return f"pid {pid}: py-spy is not installed, so that its stacks are unknown"
    # Without a pause: py-spy cannot attach to a process that is stopped already.
    command = [tool, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit_s)
    except (OSError, subprocess.SubprocessError) as error:
        return f"pid {pid}: py-spy gave no stacks ({error})"
    last = [line for line in done.stderr.splitlines() if line.strip()][:1]
    return done.stdout.rstrip() if not done.returncode else f"pid {pid}: py-spy gave no stacks {last}"


def _state(who: HungProcess) -> str:
    process = _process(who)
    if process is None:
        return "ended"
    with contextlib.suppress(_errors()):
        return str(process.status())
    return "ended"


def _process(who: HungProcess) -> psutil.Process | None:
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(who.pid)
        # The start is counted in clock ticks since a boot time that is read anew.
        if who.started is None or abs(process.create_time() - who.started) < 2.0:
            return process
    return None


def _with_children(who: HungProcess) -> list[psutil.Process]:
    process = _process(who)
    if process is None:
        return []
    with contextlib.suppress(_errors()):
        return [process, *process.children(recursive=True)]
    return [process]


def _errors() -> type[Exception]:
    import psutil

    return psutil.Error
