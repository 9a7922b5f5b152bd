"""A command whose answer a page waits for: in a session of its own, ended at its limits."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trinity_compat.common.process_limits import ProcessLimits, signal_group

LARGEST = 16 << 20  # bytes that are read of its output
_END_S = 5.0  # between SIGTERM and SIGKILL
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """A command's exit code and output. ``limit``: the limit that ended it, '' for none."""

    code: int
    out: str
    err: str
    limit: str


class BoundedProcess:
    """A command that runs, then its result. Whatever it leaves in its session's group is killed."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        env: Mapping[str, str],
        limits: ProcessLimits,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the command; ``then`` is called when it has ended. Raises OSError."""
        self.result: ProcessResult | None = None
        self._began = time.monotonic()
        self._limits = limits
        self._then = then
        self._asked_to_end = threading.Event()
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 _watch closes both
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
        )
        self._handle = os.pidfd_open(self._process.pid)
        limits.give(self._process.pid)
        self._thread = threading.Thread(target=self._watch, daemon=True, name="bounded-process")
        self._thread.start()

    @property
    def lives(self) -> bool:
        """True until the result is there."""
        return self.result is None

    @property
    def took_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._began

    def wait(self) -> None:
        """Wait until its result is there."""
        self._thread.join()

    def end(self) -> None:
        """End it and wait for that."""
        self._asked_to_end.set()
        self._thread.join(3 * _END_S)

    def _watch(self) -> None:
        # Until it is reaped no other group can have its number.
        group = self._process.pid
        late = not self._ends_in(self._limits.wall_s)
        if late or self._asked_to_end.is_set():
            signal_group(group, signal.SIGTERM)
            select.select([self._handle], [], [], _END_S)
        signal_group(group)
        code = self._process.wait()
        os.close(self._handle)
        # Python ignores SIGXFSZ: its output then ends at the limit.
        full = self._limits.file and max(map(_size, (self._out, self._err))) >= self._limits.file
        limit = self._limits.broken_by(signal.SIGXFSZ if full else signal.SIGALRM if late else -code)
        out, err = _text(self._out), _text(self._err)
        self._out.close()
        self._err.close()
        self._then()
        self.result = ProcessResult(code, out, err, limit)

    def _ends_in(self, seconds: float) -> bool:
        """Return whether the process ends in that time, or is asked to."""
        until = time.monotonic() + seconds
        while not select.select([self._handle], [], [], _LOOK_S)[0] and not self._asked_to_end.is_set():
            if time.monotonic() > until:
                return False
        return True


def run(command: Sequence[str], folder: Path, env: Mapping[str, str], limits: ProcessLimits) -> ProcessResult:
    """Return the result of a command when it has ended. Raises OSError."""
    process = BoundedProcess(command, folder, env, limits)
    process.wait()
    if process.result is None:
        raise OSError("the command has no result")
    return process.result


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(LARGEST).decode(errors="replace")
