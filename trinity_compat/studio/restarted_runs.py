"""A run that this studio started again: reaped when it ends, and its error kept for the run's page."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from trinity_compat.studio import job_files
from trinity_compat.studio.logs import clean

_LINES = 12  # of what it printed last
_BYTES = 8192
_ENDS = (signal.SIGINT, signal.SIGTERM)
_AS_ASKED = (0, *(-number for number in _ENDS), *(128 + number for number in _ENDS))  # exit codes


class RestartedRun:
    """``log``: where its output goes."""

    def __init__(self, command: Sequence[str], folder: Path, log: Path) -> None:
        """Start it in a session of its own, so that the studio's end is not the run's. Raises OSError."""
        self.log = log
        with job_files.appended(log) as file:
            self._from = file.seek(0, 2)
            self._began = time.monotonic()
            self._process = subprocess.Popen(
                command,
                cwd=folder,
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
        """Whether it has not ended."""
        return self.took_s is None

    def told(self, *, running: bool) -> str:
        """A text for the run's page: that it is getting ready, or how it failed; '' where there is neither.

        ``running``: whether the job is at work.
        """
        if self.took_s is None:
            return "" if running else f"A resume was started (pid {self.pid}) and is getting ready."
        code = self._process.returncode
        if code in _AS_ASKED:
            return ""
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"The resume ended {how} after {self.took_s:.0f} s.\n{self._last_lines()}".rstrip()

    def _last_lines(self) -> str:
        try:
            with job_files.opened(self.log) as file:
                file.seek(max(self._from, file.seek(0, 2) - _BYTES))
                text = file.read(_BYTES).decode(errors="replace")
        except OSError as error:
            return f"{self.log} {error.strerror}"
        return "\n".join(clean(text + "\n").rstrip().splitlines()[-_LINES:])
