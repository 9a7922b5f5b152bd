"""Lines that users' code prints in a run's processes: read from their logs, printed by the command itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trinity_compat.common import regular_files
from trinity_compat.common.redaction import shown
from trinity_compat.common.user_output import found

PER_MINUTE = 200  # lines of a run
_READ = 1 << 20  # bytes of a log at a poll


@dataclass(slots=True)
class _Log:
    path: Path
    place: int  # as far as it was read
    left_out: int = 0

    def news(self) -> list[str]:
        """Return the new whole lines."""
        try:
            with regular_files.followed(self.path) as file:
                file.seek(self.place)
                data = file.read(_READ)
        except OSError:  # not there yet, or the job's folder was moved
            return []
        end = data.rfind(b"\n") + 1 or (len(data) if len(data) == _READ else 0)
        self.place += end
        return data[:end].decode(errors="replace").split("\n")


@dataclass(slots=True)
class UserOutput:
    """``say`` gets PER_MINUTE lines of a minute, secrets masked, and how many others are in which log."""

    logs: Sequence[Path]
    say: Callable[[str], None]
    per_minute: int = PER_MINUTE
    clock: Callable[[], float] = time.monotonic
    _read: list[_Log] = field(init=False)
    _since: float = field(init=False)
    _said: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._read = [_Log(path, path.stat().st_size if path.exists() else 0) for path in self.logs]
        self._since = self.clock()

    def update(self) -> None:
        """Print the new lines."""
        if self.clock() - self._since > 60:
            self.close()
            self._since, self._said = self.clock(), 0
        for log in self._read:
            for line in filter(None, map(found, log.news())):
                if self._said >= self.per_minute:
                    log.left_out += 1
                else:
                    self._said += 1
                    self.say(shown(line.rstrip("\r")))

    def close(self) -> None:
        """Print how many lines were left out."""
        for log in self._read:
            if log.left_out:
                more = f"users' code printed more than {self.per_minute} in a minute"
                self.say(f"lines left out: {log.left_out} ({more}); all of them are in {log.path}")
            log.left_out = 0
