"""Child processes that never outlive the supervisor: separate groups and logs, ended as a tree."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trinity_compat.common import regular_files
from trinity_compat.common.file_modes import PRIVATE, umask
from trinity_compat.common.hung_process import HungProcess, stack
from trinity_compat.common.parent_watch import SUPERVISOR, die_with_parent, prctl
from trinity_compat.common.process_limits import signal_group

if TYPE_CHECKING:  # a dry run works without it
    import psutil

_PR_SET_CHILD_SUBREAPER = 36
_KILLED_S = 5.0  # for the kernel


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent dies."""
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_of_ctrl_c() -> int:
    """End this process by SIGINT: bash stops after a program that died of it, not after one that exits."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    return 128 + signal.SIGINT


@dataclass(frozen=True, slots=True)
class ProcessCommand:
    """A process to start.

    ``role`` is trainer, explorer, bench, reward_model or teachers; ``name`` is also the log's name.
    ``serves``: it works for the others, and the run does not wait for its end. ``umask``: of its files.
    """

    role: str
    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    cwd: str | None = None
    serves: bool = False
    umask: int = PRIVATE


@dataclass(slots=True)
class Child:
    """A started command."""

    command: ProcessCommand
    process: subprocess.Popen[bytes]
    log_start: int  # where this start's output begins in the log
    ended: float | None = None  # monotonic time at which it was seen to have ended well
    started: float = field(default_factory=time.monotonic)
    hung: str | None = None  # why it was killed

    @property
    def returncode(self) -> int | None:
        """The exit code: None while it runs, −N when signal N ended it."""
        return self.process.poll()

    def output(self) -> str:
        """Return the output of this start so far, at most its last 64 KiB."""
        try:
            with regular_files.followed(self.command.log) as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self.log_start, size - 65536))
                return log.read().decode(errors="replace")
        except FileNotFoundError:  # the job's folder was moved
            return ""


def start(command: ProcessCommand) -> Child:
    """Start ``command`` in a process group of its own, output appended to its log."""
    with umask(command.umask):
        command.log.parent.mkdir(parents=True, exist_ok=True)
        log = regular_files.appended(command.log)
    with log:
        begin = log.tell()
        process = subprocess.Popen(
            list(command.argv),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(command.env),
            cwd=command.cwd,
            # A group of its own: the terminal's Ctrl-C goes to the supervisor alone, which ends the sides.
            process_group=0,
            preexec_fn=die_with_parent,
            umask=command.umask,
        )
    return Child(command, process, begin)


def end(children: Sequence[Child], *, grace_s: float) -> None:
    """Send SIGTERM to every child's group, and SIGKILL after ``grace_s``."""
    running = [child for child in children if child.returncode is None]
    for child in running:
        signal_group(child.process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    for child in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.0, deadline - time.monotonic()))
    # The groups of all children, not of the running ones: a side that died may have left processes behind.
    for child in children:
        signal_group(child.process.pid, signal.SIGKILL)
    for child in running:
        child.process.wait()
    for child in children:
        _reap_group(child.process.pid)


def kill_hung(child: Child, why: str) -> None:
    """Kill a hung child, with its stacks in its log; ``why`` is kept as ``hung``."""
    child.hung = why
    with contextlib.suppress(FileNotFoundError), child.command.log.open("a") as log:
        log.write(f"watchdog: the {child.command.name} {why}\n")
        log.write(stack(HungProcess(child.command.name, child.process.pid)) + "\n")
    signal_group(child.process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.process.wait(_KILLED_S)


def _reap_group(pid: int) -> None:
    """Collect the killed members of a group that became ours with their parent's death."""
    deadline = time.monotonic() + _KILLED_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-pid, os.WNOHANG) == (0, 0):
                time.sleep(0.02)


def survivors(root: Path) -> list[int]:
    """Return the pids of the job's sides whose supervisor has ended, without those started by hand."""
    import psutil

    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if _is_side(process.info["cmdline"] or (), str(root)) and _lost_its_supervisor(process)
    ]


def _is_side(words: Sequence[str], root: str) -> bool:
    modules = {"trinity_compat.trainer", "trinity_compat.explorer"}
    # A bench works beside a running trainer, and outlives its end.
    if modules.isdisjoint(words) or "--bench" in words:
        return False
    return root in words or any(_is_same_folder(word, root) for word in words if word.startswith("/"))


def _is_same_folder(path: str, root: str) -> bool:
    """Return whether two paths are the same folder, also through a bind mount."""
    try:
        return Path(path).samefile(root)
    except OSError:
        return False


def _lost_its_supervisor(process: psutil.Process) -> bool:
    import psutil

    try:
        # A side that a person started in a terminal has a parent that is no supervisor, and keeps running.
        if SUPERVISOR not in process.environ():
            return False
        parent = process.parent()
        words = parent.cmdline() if parent else []
    except psutil.Error:
        return False
    return not any(word.startswith("trinity_compat") or Path(word).name == "trinity-compat" for word in words)


def sweep(*, grace_s: float = 5.0) -> list[psutil.Process]:
    """Kill every descendant that does not end by itself in time; returns what was killed."""
    import psutil

    # Ray's processes take a moment to follow their raylet; killing them meanwhile only makes noise.
    _, alive = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=grace_s)
    return alive
