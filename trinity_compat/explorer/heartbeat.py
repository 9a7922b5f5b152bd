"""Says every second that this explorer lives, and notices when the trainer no longer does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.heartbeat_thread import HeartbeatThread
from trinity_compat.buffer.model import LeaseHolder, Participant
from trinity_compat.buffer.silence_detector import SilenceDetector
from trinity_compat.common.watchdog import Watchdog
from trinity_compat.job.restarts import RESTART_S, promised

SILENCE_S = 10.0
LEASE_S = 10.0  # without a renewal for this long an explorer loses its tasks


class TrainerGone(RuntimeError):
    """The trainer was there and has not been heard of for SILENCE_S seconds, or says that it failed."""


class Heartbeat(HeartbeatThread):
    """A pulse with a buffer of its own.

    Only an explorer needs a trainer that lives, and tells it when its own death would not be the end:
    ``check`` raises TrainerGone with the reason.
    """

    def __init__(
        self,
        open_own: Callable[[], Buffer],
        name: str,
        *,
        role: str = "explorer",
        period_s: float = 1.0,
        silence_s: float = SILENCE_S,
        limit_s: float | None = None,
    ) -> None:
        always = promised() if role == "explorer" else {}
        super().__init__(
            lambda: closing(open_own()), role, name, period_s=period_s, always=always, limit_s=limit_s
        )
        self.engines = Watchdog(limit_s)  # what is asked of them
        self.holder: Callable[[], LeaseHolder | None] = lambda: (
            None
        )  # whose tasks are kept as long as it beats
        self._silence, self._sight = silence_s, SilenceDetector()

    def progress(self) -> tuple[int, list[str]]:
        """The engines' alone, once it has started: that its event loop goes round is no progress."""
        starts = [self.main.what] if self.state == "starting" else []
        return self.engines.count, [*starts, *self.engines.told()]

    def beside(self, buffer: Buffer) -> None:
        """Keep this explorer's tasks, look after the trainer. The beats go on, whatever is found."""
        if holder := self.holder():
            buffer.keep(holder, lease_s=LEASE_S)
        reason = self._trainer_trouble(buffer)
        if reason and not self._trouble:
            self._trouble = TrainerGone(reason)

    def at_the_end(self, buffer: Buffer) -> None:
        """Leave its tasks to the others."""
        if holder := self.holder():
            buffer.leave(holder)

    def _trainer_trouble(self, buffer: Buffer) -> str | None:
        if self._role != "explorer":
            return None
        return trainer_trouble(buffer, self._sight, silence_s=self._silence)


def trainer_trouble(buffer: Buffer, sight: SilenceDetector, *, silence_s: float = SILENCE_S) -> str | None:
    """Why the trainer can't be waited for any longer; None while it lives, is done, never came, or will be
    started again."""
    trainers = [p for p in buffer.participants() if p.role == "trainer"]
    sight.look()
    if not trainers:
        return None
    # One that was started again stands beside its predecessor until it begins a history.
    trainer = min(trainers, key=sight.silent_s)
    return _trouble_of(trainer, sight.silent_s(trainer), silence_s)


def _trouble_of(trainer: Participant, silent_s: float, limit_s: float) -> str | None:
    comes_back = bool(trainer.detail.get("restarts"))
    if trainer.state == "stopped":
        return "the trainer was stopped by a signal"
    if trainer.state == "failed" and not comes_back:
        return f"the trainer failed: {trainer.detail.get('reason', 'see its log')}"
    if trainer.state != "done" and silent_s > (RESTART_S if comes_back else limit_s):
        return f"the trainer (pid {trainer.pid} on {trainer.host}) has been silent for {trainer.age_s:.0f} s"
    return None
