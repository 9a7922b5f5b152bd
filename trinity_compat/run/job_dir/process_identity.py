"""A process told from a later one of the same pid: its start time and a digest of its command line."""

from __future__ import annotations

import hashlib
from pathlib import Path


def identity_of(pid: int) -> str:
    """``PID START COMMAND``, the content of a lock file.

    START counts clock ticks since the machine's start (proc(5): starttime); COMMAND is a digest, since a
    command line may hold a secret. Where the system has no /proc, or no such process, ``PID`` alone.
    """
    folder = Path("/proc") / str(pid)
    try:
        # The name, in parentheses, may hold spaces and parentheses of its own; the 22nd field is the start.
        start = (folder / "stat").read_bytes().rpartition(b")")[2].split()[19].decode()
        command = hashlib.sha256((folder / "cmdline").read_bytes()).hexdigest()[:16]
    except (OSError, IndexError):
        return str(pid)
    return f"{pid} {start} {command}"
