"""Says every second that this explorer lives, and notices when the trainer no longer does."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import closing

from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.model import Holder
from trinity_compat.buffer.pulse import Pulse
from trinity_compat.buffer.sight import Sight
from trinity_compat.explorer.sharing import LEASE_S

SILENCE_S = 10.0
RESTARTS = "TRINITY_COMPAT_RESTARTS"  # set by the supervisor: how often it will start this explorer again


class TrainerGone(RuntimeError):
    """The trainer was there and has not been heard of for SILENCE_S seconds, or says that it failed."""


class Heartbeat(Pulse):
    """A pulse with a buffer of its own. Only an explorer needs a trainer that lives, and tells it when its
    own death would not be the end: ``check`` raises TrainerGone with the reason."""

    def __init__(
        self,
        open_own: Callable[[], Buffer],
        name: str,
        *,
        role: str = "explorer",
        period_s: float = 1.0,
        silence_s: float = SILENCE_S,
    ) -> None:
        super().__init__(lambda: closing(open_own()), role, name, period_s=period_s)
        restarts = int(os.environ.get(RESTARTS) or 0) if role == "explorer" else 0
        self.detail = {"restarts": restarts} if restarts else {}
        self.holder: Callable[[], Holder | None] = lambda: None  # whose tasks are kept as long as it beats
        self._silence, self._sight = silence_s, Sight()

    def beside(self, buffer: Buffer) -> None:
        """Keep this explorer's tasks, look after the trainer. The beats go on, whatever is found."""
        if holder := self.holder():
            buffer.keep(holder, lease_s=LEASE_S)
        reason = self._trainer_trouble(buffer, self._sight.look())
        if reason and not self._trouble:
            self._trouble = TrainerGone(reason)

    def at_the_end(self, buffer: Buffer) -> None:
        """Leave its tasks to the others."""
        if holder := self.holder():
            buffer.leave(holder)

    def _trainer_trouble(self, buffer: Buffer, seen_s: float) -> str | None:
        if self._role != "explorer":
            return None
        return trainer_trouble(buffer, seen_s=seen_s, silence_s=self._silence)


def trainer_trouble(buffer: Buffer, *, seen_s: float = math.inf, silence_s: float = SILENCE_S) -> str | None:
    """Why the trainer can't be waited for any longer; None while it lives, is done, or never came. Its
    silence counts no further back than the ``seen_s`` seconds for which the database was in sight."""
    trainers = [p for p in buffer.participants() if p.role == "trainer"]
    for trainer in trainers:
        if trainer.state == "failed":
            return f"the trainer failed: {trainer.detail.get('reason', 'see its log')}"
        if trainer.state == "stopped":
            return "the trainer was stopped by a signal"
        if trainer.state != "done" and min(trainer.age_s, seen_s) > silence_s:
            return (
                f"the trainer (pid {trainer.pid} on {trainer.host}) has been silent for {trainer.age_s:.0f} s"
            )
    return None
