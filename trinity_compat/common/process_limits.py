"""The end of a process with all that it started, and the memory that a process may take."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def signal_group(leader: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to the process group of ``leader``, 0 for this process's; no-op where it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def data_bytes() -> int | None:
    """Return this process's bytes of data, which RLIMIT_DATA limits; None where the system does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return None


def limit_memory(more: int) -> None:
    """Limit this process's data to ``more`` bytes beyond what it has; no-op where the system has no limit."""
    if (used := data_bytes()) is not None:
        import resource  # here: not every platform has it

        resource.setrlimit(resource.RLIMIT_DATA, (used + more, used + more))
