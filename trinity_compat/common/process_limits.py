"""The end of a process with all that it started, and the limits of what a process may take."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Limits of a command. ``cpu_s``, and ``memory`` and ``file`` in bytes, are of each of its processes.

    0: no limit. The kernel keeps all but ``wall_s``.
    """

    wall_s: float
    cpu_s: int = 0
    memory: int = 0
    file: int = 0

    def give(self, pid: int) -> None:
        """Give them to a process, 0 for this one; no-op where it has ended."""
        import resource  # here: not every platform has it

        wanted = (
            (resource.RLIMIT_CPU, self.cpu_s),
            (resource.RLIMIT_DATA, self.memory),
            (resource.RLIMIT_FSIZE, self.file),
        )
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
            for kind, most in wanted:
                if most:
                    hard = resource.prlimit(pid, kind)[1]  # this process's own, which may be lower
                    # One more: at the hard limit of time the kernel kills, and the signal would not tell why.
                    soft, last = (most, most + 1) if hard < 0 else (min(most, hard), min(most + 1, hard))
                    resource.prlimit(pid, kind, (soft, last))

    def broken_by(self, ended: int) -> str:
        """Return the limit whose signal ended a process, by the signal's number; '' for another."""
        if ended == signal.SIGALRM:
            return f"it took more than {self.wall_s:.0f} s"
        if ended == signal.SIGXCPU:
            return f"it took more than {self.cpu_s} s of processor time"
        return f"it wrote more than {self.file >> 20} MiB" if ended == signal.SIGXFSZ else ""
