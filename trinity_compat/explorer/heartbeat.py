"""The explorer's heartbeat, every second, and its check of the trainer's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from trinity_compat.buffer.heartbeat_thread import HeartbeatThread, SilenceDetector
from trinity_compat.buffer.model import LeaseHolder
from trinity_compat.buffer.store import Buffer
from trinity_compat.common.watchdog import Watchdog
from trinity_compat.job.liveness import RESTART_S, TASK_LEASE_S, TRAINER_SILENT_S, promised


class TrainerGone(RuntimeError):
    """The trainer was silent for TRAINER_SILENT_S seconds, or reported its failure."""


class Heartbeat(HeartbeatThread):
    """Heartbeat with a separate connection to the buffer.

    Only an explorer needs a living trainer: ``check`` raises TrainerGone with the reason. It also reports
    whether it would be restarted after its death.
    """

    def __init__(
        self,
        open_own: Callable[[], Buffer],
        name: str,
        *,
        role: str = "explorer",
        period_s: float = 1.0,
        silence_s: float = TRAINER_SILENT_S,
        limit_s: float | None = None,
    ) -> None:
        always = promised() if role == "explorer" else {}
        super().__init__(
            lambda: closing(open_own()), role, name, period_s=period_s, always=always, limit_s=limit_s
        )
        self.engines = Watchdog(limit_s)  # requests to them
        self.holder: Callable[[], LeaseHolder | None] = lambda: None  # its leases are renewed
        self._silence, self._detector = silence_s, SilenceDetector()

    def progress(self) -> tuple[int, list[str]]:
        """Return the engines' progress, once it has started: that of its event loop does not count."""
        starts = [self.main.what] if self.state == "starting" else []
        return self.engines.count, [*starts, *self.engines.told()]

    def after_beat(self, buffer: Buffer) -> None:
        """Renew this explorer's leases and check the trainer. The heartbeat continues in any case."""
        if holder := self.holder():
            buffer.keep(holder, lease_s=TASK_LEASE_S)
        if self._role == "explorer" and not self._trouble:
            reason = trainer_trouble(buffer, self._detector, silence_s=self._silence)
            self._trouble = TrainerGone(reason) if reason else None

    def before_last_beat(self, buffer: Buffer) -> None:
        """Leave its tasks to the other explorers."""
        if holder := self.holder():
            buffer.leave(holder)


def trainer_trouble(
    buffer: Buffer, detector: SilenceDetector, *, silence_s: float = TRAINER_SILENT_S
) -> str | None:
    """Return why a longer wait for the trainer is of no use.

    None while it lives, is done, never came, or will be restarted.
    """
    trainers = [p for p in buffer.participants() if p.role == "trainer"]
    detector.look()
    if not trainers:
        return None
    # A restarted trainer is listed beside its predecessor until it begins a history.
    trainer = min(trainers, key=detector.silent_s)
    comes_back = bool(trainer.detail.get("restarts"))
    if trainer.state == "stopped":
        return "the trainer was stopped by a signal"
    if trainer.state == "failed" and not comes_back:
        return f"the trainer failed: {trainer.detail.get('reason', 'see its log')}"
    if trainer.state != "done" and detector.silent_s(trainer) > (RESTART_S if comes_back else silence_s):
        return f"the trainer (pid {trainer.pid} on {trainer.host}) has been silent for {trainer.age_s:.0f} s"
    return None
