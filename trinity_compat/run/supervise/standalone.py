"""The supervisor's view of a process without a trainer, in mode bench or serve."""

from __future__ import annotations

from dataclasses import dataclass, field

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import Participant
from trinity_compat.buffer.store import Buffer
from trinity_compat.run.job_dir.heartbeats import WAIT_S, Heartbeats, LastHeartbeat
from trinity_compat.run.job_dir.progress import say


@dataclass(slots=True)
class StandaloneWatch:
    """Reads what the process writes to the job's database at ``url``. A ``supervisor.ProgressWatch``."""

    url: str
    buffer: Buffer = field(init=False)
    _for_heartbeats: Buffer = field(init=False)
    _heartbeats: Heartbeats = field(init=False, default_factory=Heartbeats)

    def begin(self) -> None:
        """Open the database, which exists from now on."""
        self.buffer = open_buffer(self.url)
        self._for_heartbeats = open_buffer(self.url, retry_s=WAIT_S)

    def update(self) -> None:
        """Called at every poll."""

    def heard(self, role: str, pid: int) -> LastHeartbeat | None:
        """Return the last heartbeat of the process."""
        self._heartbeats.read(self._for_heartbeats)
        return self._heartbeats.of(role, pid)

    def of(self, role: str) -> list[Participant]:
        """Return all participants with that role."""
        return [who for who in self.buffer.participants() if who.role == role]

    def reason(self, role: str, pid: int) -> str | None:
        """Return the reason of a failure that the process reported."""
        failed = [who for who in self.of(role) if (who.state, who.pid) == ("failed", pid)]
        return str(failed[-1].detail["reason"]) if failed and failed[-1].detail.get("reason") else None


SERVE = "serve"


@dataclass(slots=True)
class ServeWatch(StandaloneWatch):
    """Prints the endpoint's address and weights whenever they change."""

    _before: frozenset[int] = frozenset()
    _at: object = None
    _note: object = None

    def begin(self) -> None:
        """Note earlier endpoints: a killed one has not reported its end."""
        StandaloneWatch.begin(self)
        self._before = frozenset(who.pid for who in self.of(SERVE))

    def update(self) -> None:
        """Called at every poll."""
        for who in self.of(SERVE):
            if who.state == "running" and who.pid not in self._before:
                at, note = (who.detail.get("address"), who.detail.get("step")), who.detail.get("note")
                if at != self._at:
                    say(serving_line(*at))
                if note and note != self._note:
                    say(f"note: {note}")
                self._at, self._note = at, note


def serving_line(address: object, step: object) -> str:
    """Return the line with the endpoint's address and its weights."""
    weights = f"the weights of step {step}" if step else "the model as it was before training"
    return f"serves {weights} at {address}; Ctrl-C ends it"
