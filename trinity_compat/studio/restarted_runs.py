"""A run that this studio restarted: reaped when it ends, with its last output for the run's page."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trinity_compat.studio import job_files
from trinity_compat.studio.logs import last_lines

_ENDS = (signal.SIGINT, signal.SIGTERM)
_EXPECTED = (0, *(-number for number in _ENDS), *(128 + number for number in _ENDS))  # exit codes


class RestartedRun:
    """A restarted run. ``log`` is the file that receives its output."""

    def __init__(
        self, command: Sequence[str], folder: Path, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        """Start the command in its own session, so that it outlives the studio.

        ``env`` None: this process's. Raises OSError.
        """
        self.log = log
        with job_files.appended(log) as file:
            self._from = file.seek(0, 2)
            self._began = time.monotonic()
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.took_s: float | None = None
        threading.Thread(target=self._reap, daemon=True, name="studio-resumed").start()

    def _reap(self) -> None:
        self._process.wait()
        self.took_s = time.monotonic() - self._began

    @property
    def lives(self) -> bool:
        """True until the process has ended."""
        return self.took_s is None

    def message(self, *, running: bool) -> str:
        """Return a message for the run's page: the resume is starting, or how it failed; else ''.

        ``running`` is True while the job sends heartbeats.
        """
        if self.took_s is None:
            return "" if running else f"Resuming: process {self.pid} is starting up."
        code = self._process.returncode
        if code in _EXPECTED:
            return ""
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        lines = last_lines(self.log, after=self._from)
        return f"The resume ended {how} after {self.took_s:.0f} s.\n{lines}".rstrip()
