"""A run that this studio started or resumed: reaped when it ends, with its last output for a page."""

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
_BEGINNING = {"start": "Starting", "resume": "Resuming"}


class StartedRun:
    """A process of ``trinity-compat run``. ``log`` is the file that receives its output."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        log: Path,
        env: Mapping[str, str] | None = None,
        *,
        action: str = "resume",
    ) -> None:
        """Start the command in its own session, so that it outlives the studio.

        ``env`` None: this process's. ``action``, start or resume, is its name in messages. Raises OSError.
        """
        self.log = log
        self._action = action
        with job_files.appended(log) as file:
            self._from = file.seek(0, 2)
            began = time.monotonic()
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
        self._has_run = False

        def reap() -> None:
            self._process.wait()
            self.took_s = time.monotonic() - began

        threading.Thread(target=reap, daemon=True, name="studio-run").start()

    @property
    def lives(self) -> bool:
        """True until the process has ended."""
        return self.took_s is None

    @property
    def code(self) -> int | None:
        """The exit code, None while it lives; below 0 the signal that ended it."""
        return None if self.lives else self._process.returncode

    def output(self, count: int = 12) -> str:
        """Return its last lines of output."""
        return last_lines(self.log, after=self._from, count=count)

    def message(self, *, running: bool) -> str:
        """Return a message for the run's page: that it begins, or how it failed; else ''.

        ``running`` is True while the job sends heartbeats. Once it has, a process that lives is ending.
        """
        self._has_run = self._has_run or running
        if self.took_s is None:
            return "" if self._has_run else f"{_BEGINNING[self._action]}: process {self.pid} is starting up."
        code = self._process.returncode
        if code in _EXPECTED:
            return ""
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"The {self._action} ended {how} after {self.took_s:.0f} s.\n{self.output()}".rstrip()
